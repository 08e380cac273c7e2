"""HTML files of reports, with links that save what they show: a page is one file, without a script."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any

from ..files import make_folder, write_text
from .figures import fixed, label_of
from .paper_figures import file_name
from .tables import environment


def write_html(path: Path, template: str, **values: Any) -> Path:
    """Write the page of a template to `path`, atomically. Raises InputError if it cannot be written."""
    pages = environment()
    pages.filters |= {"fixed": fixed, "label": label_of, "file_name": file_name, "data_link": data_link}
    text = pages.get_template(template).render(**values)
    make_folder(path.parent)
    write_text(path, text)
    return path


def data_link(text: str, kind: str) -> str:
    """Return a link that is the text itself, as a file of the MIME type `kind`."""
    return f"data:{kind};base64,{b64encode(text.encode()).decode()}"

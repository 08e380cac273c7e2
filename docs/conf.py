"""The documentation site: Sphinx reads the pages of this folder, runs the notebooks, and writes build/site.

Nothing in a built page is fetched from elsewhere: the theme brings its scripts and fonts, formulas become MathML.
"""

from __future__ import annotations

import re
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(Path(__file__).parent))

from docstrings import as_restructured_text

import fedflat

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

project = "fedflat"
author = "The fedflat developers"
version = release = fedflat.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["growth", "notebooks"]
pygments_style = "default"

myst_heading_anchors = 4  # links lead to headings as on a code host
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_update_mathjax = False
nb_execution_mode = "force"
nb_execution_in_temp = True  # what a notebook writes is gone afterwards
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds for a cell, of which a busy machine takes many
nb_merge_streams = True

autoclass_content = "both"  # arguments are described by __init__
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # docstrings say what types do not; signatures stay short
autodoc_preserve_defaults = True
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "fedflat"
html_static_path = ["_static"]
html_favicon = "_static/logo.svg"
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "logo": {
        "text": "fedflat",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo-dark.svg",
        "alt_text": "",  # the name stands beside it
    },
    "navbar_end": ["theme-switcher"],
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars: dict[str, list[str]] = {"index": []}  # its subpages are in the bar at the top
project_copyright = author

ROOT = Path(__file__).parents[1]
# Pages whose text is in a file outside this folder, where readers of the repository look for it.
OUTSIDE = {
    "project/contributing": "CONTRIBUTING.md",
    "project/security": "SECURITY.md",
    "project/changelog": "CHANGELOG.md",
    "project/benchmarks": "benchmarks/README.md",
    "tutorials/examples": "examples/README.md",
}
PAGES = {ROOT / file: page for page, file in OUTSIDE.items()} | {ROOT / "README.md": "index"}
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
CODE_OF_METHOD = re.compile(r"Code: \[(src/fedflat/methods/\w+\.py)\]\([^)]*\)")
NOTEBOOK = re.compile(r"\A---\njupytext:.*?\n# [^\n]*\n", re.DOTALL)


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Take the text of a page from where it is, and let its links lead to pages of the site."""
    file = ROOT / OUTSIDE.get(page, f"docs/{page}.md")
    text = with_notebook(with_source(file.read_text()), file.stem)
    source[0] = LINK.sub(lambda found: link(found, file.parent), text)


def with_source(text: str) -> str:
    """Return the page of a method with its code at the end, to which the name of the file leads."""
    found = CODE_OF_METHOD.search(text)
    if not found:
        return text
    linked = text.replace(found[0], f"Code: [{found[1]}](#source)")
    return f"{linked}\n## Source\n\n```{{literalinclude}} ../../{found[1]}\n:language: python\n```\n"


def with_notebook(text: str, name: str) -> str:
    """Return a page that is a notebook with the offer of its file under the title."""
    offer = f"\n{{download}}`As a notebook for Jupyter </notebooks/{name}.ipynb>`\n"
    return NOTEBOOK.sub(lambda found: found[0] + offer, text)


def link(found: re.Match[str], folder: Path) -> str:
    """Return a link of a file in `folder`, as a page of the site has it.

    A file that is no page is named, and not linked.
    """
    text, target, anchor = found[1], found[2], found[3] or ""
    path = (folder / target).resolve()
    if path in PAGES:
        return f"[{text}](/{PAGES[path]}.md{anchor})"
    if path.suffix == ".ipynb" and path.is_file():
        return f"{{download}}`{text} </{path.relative_to(ROOT / 'docs')}>`"
    if path.is_relative_to(ROOT / "docs") and path.is_file():
        return f"[{text}](/{path.relative_to(ROOT / 'docs')}{anchor})"
    return text if path.exists() else found[0]


def read_docstring(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Turn a docstring, plain text with Markdown's `code`, into the reStructuredText that Sphinx reads."""
    lines[:] = as_restructured_text([*lines, "", *meanings(thing)])


def meanings(thing: object) -> list[str]:
    """Return what the fields of a class mean that have a description, such as hyper-parameters."""
    if not (isinstance(thing, type) and is_dataclass(thing)):
        return []
    return [f"{f.name}: {f.metadata['meaning']}" for f in fields(thing) if "meaning" in f.metadata]


def visit_math(self: Any, node: nodes.math) -> None:
    """Write a formula as MathML, which browsers show without a script."""
    self.body.append(tex2mathml(node.astext()))
    raise_skip()


def visit_math_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula that stands alone as MathML, in a box that scrolls by itself where it is too wide."""
    self.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise_skip()


def raise_skip() -> None:
    """Skip the children of a formula's node."""
    from docutils.nodes import SkipNode

    raise SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register what is above."""
    app.connect("source-read", read_page)
    app.connect("autodoc-process-docstring", read_docstring)
    app.add_html_math_renderer("mathml", inline_renderers=(visit_math, None), block_renderers=(visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

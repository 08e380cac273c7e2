"""The files for Jupyter have the cells of their pages, and links that lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from docs.notebooks import FOLDER, moved, notebook, notebook_pages

PAGE = """---
jupytext:
  x: y
---

# Title

See [there](../docs/other.md#here) and [elsewhere](https://example.org).

```{code-cell} ipython3
print(1)

print(2)
```

```{code-block} toml
:caption: a.toml
x = 1
```

```{code-cell} ipython3
:tags: [remove-input]
print(3)
```
"""


def test_a_page_becomes_cells_in_their_order(tmp_path: Path) -> None:
    (page := tmp_path / "page.md").write_text(PAGE)
    made = nbformat.reads(notebook(page), as_version=4)
    nbformat.validate(made)
    assert [cell.cell_type for cell in made.cells] == ["markdown", "code", "markdown", "code"]
    first, one, text, two = (cell.source for cell in made.cells)
    assert first.startswith("# Title\n\nSee [there](")
    assert first.endswith("[elsewhere](https://example.org).")
    assert (one, two) == ("print(1)\n\nprint(2)", "print(3)")
    assert text == "`a.toml`\n\n```toml\nx = 1\n```"
    assert made.cells[3].metadata == {"jupyter": {"source_hidden": True}}
    assert "source_hidden" not in str(made.cells[1].metadata)


@pytest.mark.parametrize("page", notebook_pages(), ids=lambda page: page.stem)
def test_the_file_has_every_cell_and_its_links_lead_somewhere(page: Path) -> None:
    cells = json.loads((FOLDER / f"{page.stem}.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) == page.read_text().count("\n```{code-cell} ipython3\n")
    assert all(part in page.read_text() for part in code)
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "//" not in link]
    assert len(links) >= 1
    assert [link for link in links if not (FOLDER / link).exists()] == []


def test_a_link_within_a_page_leads_to_the_page() -> None:
    page = FOLDER.parent / "own_data.md"
    assert moved("#labels", page) == "../own_data.md#labels"
    assert moved("howto/own_files.md", page) == "../howto/own_files.md"

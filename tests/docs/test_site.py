"""The documentation site is built without a warning, its notebooks run, and nothing in it comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, fields
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

import fedflat as ff
from fedflat.core import method as core_method
from fedflat.methods import all_methods
from support.blank_figures import blank_figures  # noqa: F401 (used by every test)
from support.effort import chosen, in_test_all
from support.fresh_process import SOURCE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(?::[^\n]*\n)*(.*?)^```", re.MULTILINE | re.DOTALL)
NOTEBOOKS = sorted(path for path in DOCS.rglob("*.md") if path.read_text().startswith("---\njupytext"))
FETCHED = {"script": "src", "link": "href", "img": "src", "source": "src", "iframe": "src", "object": "data"}
IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\s;]*")


# `python -m sphinx` without what takes a third of its time and no test looks at: cycles of garbage are not looked for,
# and the words of the search's index stay as they are.
BUILD = """
import gc, sys
gc.disable()
from sphinx.cmd.build import main
from sphinx.search.en import SearchEnglish
SearchEnglish.stem = lambda self, word: word
sys.exit(main())
"""


@dataclass
class Page(HTMLParser):
    """What a page fetches to be shown, where its links lead, and what can be linked to."""

    text: str
    fetched: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.fetched |= set(IN_STYLE.findall(self.text))
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif given.get(FETCHED.get(tag, ""), "") and given.get("rel") not in ("next", "prev", "index", "search"):
            self.fetched.add(given[FETCHED[tag]])

    @property
    def foreign(self) -> list[str]:
        """What is fetched from another place than the site."""
        return sorted(one for one in self.fetched if "//" in one and not one.startswith("data:"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does, in some other folder; but for `make test-all` no kernel is started."""
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {
        "PYTHONPATH": str(SOURCE),  # notebooks import these sources, too
        "FEDFLAT_CACHE": str(folder / "cache"),
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "jupyter"),
    }
    options = ["-q", "-W", "--keep-going", "-E", "-b", "html", "-d", str(folder / "doctrees")]
    options += chosen(["-D", "nb_execution_mode=off", "-D", "suppress_warnings=myst-nb.lexer"], [])
    command = [sys.executable, "-c", BUILD, *options, str(DOCS), str(folder / "html")]
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Every page; the theme's folder has a template, which is none."""
    return {path: Page(path.read_text()) for path in site.rglob("*.html") if site / "_static" not in path.parents}


def test_what_a_page_fetches_is_found() -> None:
    local = '<script src="a.js"></script><a href="https://example.org">x</a><img src="data:image/png;base64,AA//">'
    assert Page(local).foreign == []
    for foreign in (
        '<script src="https://cdn.example.org/a.js"></script>',
        '<link rel="stylesheet" href="//example.org/a.css">',
        '<link rel="preload" as="font" href="https://example.org/a.woff2">',
        '<img src="http://example.org/a.png">',
        "<style>@font-face { src: url('https://example.org/a.woff2') }</style>",
        '<style>@import "https://example.org/a.css";</style>',
    ):
        assert len(Page(foreign).foreign) == 1, foreign


@pytest.mark.slow
def test_every_page_is_in_the_site(pages: dict[Path, Page], site: Path) -> None:
    written = {path.relative_to(site).with_suffix("") for path in pages}
    sources = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}
    assert len(sources) >= 30
    assert sources - written == set()


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, Page], site: Path) -> None:
    assert {path.name: page.foreign for path, page in pages.items() if page.foreign} == {}
    styles = list(site.rglob("*.css"))
    assert len(styles) >= 4
    assert {path.name: found for path in styles if (found := IN_STYLE.findall(path.read_text()))} == {}


@pytest.mark.slow
def test_every_link_within_the_site_leads_somewhere(pages: dict[Path, Page]) -> None:
    wrong, seen = [], 0
    for path, page in pages.items():
        for link in page.links | page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link in ("#", ""):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = pages[target].anchors if target in pages else {parts.fragment}
            seen += 1
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                wrong.append((path.name, link))
    assert seen > 1000
    assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_runs(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, in an empty folder, in this process, which has imported torch already; most print something."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))  # one starts the command line
    monkeypatch.setitem(sys.modules, "notebook", module := ModuleType("notebook"))
    cells = CELL.findall(notebook.read_text())
    for cell in cells:
        exec(compile(cell, str(notebook), "exec", dont_inherit=True), vars(module))
    assert len(cells) >= 4
    assert len(capsys.readouterr().out.splitlines()) >= len(cells) - 2


@in_test_all
@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_of_a_notebook_was_run(notebook: Path, site: Path) -> None:
    """A cell that raises fails the build; here, that each was handed to a kernel and that something came back."""
    text = (site / notebook.relative_to(DOCS)).with_suffix(".html").read_text()
    cells = re.findall(r"^```\{code-cell\}", notebook.read_text(), re.MULTILINE)
    assert len(cells) >= 4
    assert len(re.findall(r'<div class="cell [^"]*docutils', text)) == len(cells)
    assert len(re.findall(r'<div class="cell_output', text)) >= len(cells) - 1
    assert "Traceback" not in text


def test_there_are_five_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["flatness", "sweeps", "own_data", "own_method", "ten_minutes"]


@pytest.mark.slow
def test_formulas_are_mathml(site: Path) -> None:
    text = (site / "flatness.html").read_text()
    assert text.count("<math ") == len(re.findall(r"\$[^$]+\$", (DOCS / "flatness.md").read_text()))


@pytest.mark.slow
def test_every_method_has_a_page_with_formulas_that_scroll_by_themselves(site: Path) -> None:
    for name in all_methods():
        text = (site / "methods" / f"{name.lower()}.html").read_text()
        displayed = (DOCS / "methods" / f"{name.lower()}.md").read_text().count("\n$$\n") // 2
        assert text.count('<div class="formula"><math ') == displayed >= 1
        assert "$" not in re.sub(r"<(pre|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert text.count('<section id="source">') == text.count('href="#source">src/fedflat/methods/') == 1


@pytest.mark.slow
def test_the_search_needs_no_server(pages: dict[Path, Page], site: Path) -> None:
    """A browser lets no script read a file, but loads an index that is a script itself."""
    assert {"searchindex.js", "_static/searchtools.js"} <= {
        link.split("?")[0] for link in pages[site / "search.html"].fetched
    }


@pytest.mark.slow
def test_every_notebook_is_offered_as_a_file(pages: dict[Path, Page], site: Path) -> None:
    for notebook in NOTEBOOKS:
        page = (site / notebook.relative_to(DOCS)).with_suffix(".html")
        [link] = [link for link in pages[page].links if link.endswith(f"/{notebook.stem}.ipynb")]
        assert (page.parent / link).read_text() == (DOCS / "notebooks" / f"{notebook.stem}.ipynb").read_text()


def test_every_field_of_a_context_is_explained() -> None:
    explained = re.findall(r"^    (\w+): ", core_method.Context.__doc__ or "", re.MULTILINE)
    assert explained == [one.name for one in fields(core_method.Context)]


@pytest.mark.slow
def test_every_public_name_has_an_entry(pages: dict[Path, Page], site: Path) -> None:
    public = {f"fedflat.{name}" for name in ff.__all__ if name not in ("data", "methods", "models")}
    own = {f"fedflat.core.method.{name}" for name in core_method.__all__}
    assert public - pages[site / "reference" / "fedflat.html"].anchors == set()
    assert own - pages[site / "reference" / "own_parts.html"].anchors == set()

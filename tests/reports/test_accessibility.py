"""What keyboards, screen readers and savers of figures need of a page, without a browser.

`make accessibility` has axe-core look at the pages; this keeps what it found from coming back.
"""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import fedflat as ff
from fedflat.metrics.flatness.surface import Mark, Surface
from fedflat.reports.federation import ClientFacts, FederationData, RoundFacts, write_federation_page
from fedflat.reports.surfaces import write_landscape
from support.finished_runs import Fake, split_data

HOSTILE = """d" onload="alert(1)'><b>"""
METHODS = ("FedAvg", "FedSAM", "FedGF", "FedDyn")


def compared() -> ff.reports.Comparison:
    return ff.compare([
        Fake(method, seed, [0.2, 0.5, 0.6 + 0.1 * seed], columns={"test_loss": [3.0, 2.0, 1.0]},
             data=split_data(HOSTILE))
        for method in METHODS for seed in range(2)
    ])  # fmt: skip


def study(folder: Path) -> Path:
    return compared().to_html(folder / "page.html")


def federation(folder: Path) -> Path:
    names = ["north", "south"]
    clients = [ClientFacts(name, 5, counted=2 - i, missing=i) for i, name in enumerate(names)]
    rounds = {0: RoundFacts(names, {}), 1: RoundFacts(["north"], {"south": "no answer"})}
    data = FederationData(folder, "FedAvg", 2, True, [{"t": 0, "test_accuracy": 0.5}], rounds, clients,
                          [("7", "unknown", 1)], [("now", "begun")], [], {"rounds": "2"})  # fmt: skip
    return write_federation_page(data, folder)


def landscape(folder: Path) -> Path:
    x = np.linspace(-1, 1, 5)
    loss, marks = x**2 + x[:, None] ** 2, (Mark("the model", 0.0, 0.0, 0.0),)
    return write_landscape([Surface("FedAvg", "global model", ("x", "y"), x, x, loss, marks, "-")], [], folder, "title")


PAGES = {of.__name__: of for of in (study, federation, landscape)}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: make(tmp_path_factory.mktemp(name)).read_text() for name, make in PAGES.items()}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, pages: dict[str, str]) -> str:
    return pages[request.param]


class Tags(HTMLParser):
    """All start tags in their order, each with its attributes and the tags around it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), tuple(self._open)))
        if tag not in {"meta", "link", "br", "img", "input"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while tag in self._open and self._open.pop() != tag:
            pass


def test_all_that_is_read_is_in_the_one_main_part(page: str) -> None:
    tags = Tags(page).found
    assert sum(tag == "main" for tag, *_ in tags) == 1
    assert {"main" in around for tag, _, around in tags if tag in ("h1", "h2", "p", "table", "figure")} == {True}


def test_the_keyboard_scrolls_every_table_and_a_name_is_read_for_it(page: str) -> None:
    boxes = [attributes for _, attributes, _ in Tags(page).found if attributes.get("class") == "scroll"]
    assert page.count("<table") <= len(boxes)
    assert all((box["tabindex"], box["role"]) == ("0", "group") and box["aria-label"] for box in boxes)


def test_every_row_of_a_table_has_a_heading(page: str) -> None:
    bodies = re.findall(r"<tbody>(.*?)</tbody>", page, re.DOTALL)
    rows = [row for body in bodies for row in re.findall(r"<tr[^>]*>(\S+)", body)]
    assert rows
    assert set(rows) == {"<th"}
    assert {attributes.get("scope") for tag, attributes, _ in Tags(page).found if tag == "th"} <= {"col", "row"}


def test_every_figure_has_a_label(page: str) -> None:
    drawings = [attributes for tag, attributes, _ in Tags(page).found if tag == "svg"]
    assert drawings
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in drawings)


@pytest.mark.parametrize("kind", ["study", "federation"])
def test_every_figure_can_be_saved_as_it_is_shown_in_colours_of_its_own(kind: str, pages: dict[str, str]) -> None:
    text = pages[kind]
    shown = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    saved = re.findall(r'<a download="([a-z0-9][a-z0-9.-]*)\.svg" href="data:image/svg\+xml;base64,([^"]+)">', text)
    assert len(saved) == len(shown) > 0
    for drawing, (_, link) in zip(shown, saved, strict=True):
        file = base64.b64decode(link).decode()
        assert [part.get("d") for part in ET.fromstring(file).iter()] == [
            part.get("d") for part in ET.fromstring(drawing).iter()
        ]
        assert "currentColor" in drawing
        assert "currentColor" not in file
        assert "var(" not in file


def test_latex_and_csv_can_be_saved(pages: dict[str, str]) -> None:
    for kind, content in (("tex", compared().to_latex()), ("csv", compared().to_csv())):
        [link] = re.findall(
            rf'<a download="comparison.{kind}" href="data:text/[a-z-]+;base64,([^"]+)">', pages["study"]
        )
        assert base64.b64decode(link).decode() == content

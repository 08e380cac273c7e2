"""The page in a real browser: it has the table, the curves, and nothing goes wrong in the console."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fedflat as ff
from fedflat.experiments import studies
from support.browser import CHROMIUM, browse
from support.studies import study_spec

pytestmark = pytest.mark.slow
Seen = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    runs = studies.carry_out_study(study_spec(methods=["fedavg", {"name": "fedsam", "rho": 0.2}, "fedgf"]), folder)
    return ff.compare(runs).to_html(folder / "report.html")


@pytest.fixture(scope="module")
def seen(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Return a function that measures the page at a width; it starts the browser once for each."""

    @cache
    def of(width: int, dark: bool = False) -> dict[str, Any]:
        parts = ", ".join(f"Promise.resolve({script})" for script in MEASURED.values())
        found = measured(report, tmp_path_factory.mktemp("seen"), width, f"Promise.all([{parts}])", dark)
        return dict(zip(MEASURED, found, strict=True))

    return of


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; .ci/run installs Debian's")
class TestInABrowser:
    def test_it_shows_table_and_curves_without_a_console_message(self, report: Path, tmp_path: Path) -> None:
        dom, log = browse(report, 1100, tmp_path)
        table = re.search(r'<table class="comparison">.*?</table>', dom, re.DOTALL)
        assert table
        assert table.group().count("<tr") == 4
        assert all(name in table.group() for name in ("FedAvg", "FedSAM", "FedGF"))
        for figure, drawn in (("curves", 2), ("losses", 1), ("costs", 2), ("differences", 1), ("partition", 1)):
            found = re.search(rf'<figure class="{figure}[" ].*?</figure>', dom, re.DOTALL)
            assert found, figure
            assert found.group().count("<svg") >= drawn, figure
        assert "CONSOLE" not in log

    def test_the_check_of_the_console_can_fail(self, tmp_path: Path) -> None:
        page = tmp_path / "broken.html"
        page.write_text("<script>nonsense()</script>")
        assert "CONSOLE" in browse(page, 800, tmp_path / "profile")[1]

    @pytest.mark.parametrize("width", [600, 1280])
    def test_the_window_does_not_scroll_sideways(self, seen: Seen, width: int) -> None:
        """Wide tables scroll inside their own box, which says so and takes the focus of the keyboard."""
        found = seen(width)["scrolling"]
        assert found["content"] <= found["window"]
        assert found["wide"] == [width == 600] + [False] * (len(found["wide"]) - 1)
        assert found["hints"] == found["wide"]
        assert found["out of reach"] == 0

    def test_the_table_fits_with_all_that_is_usual_in_it(self, tmp_path: Path) -> None:
        """Variants, validation samples, two measures of flatness and a target, at 1280 pixels."""
        methods = [{"name": "fedsam", "rho": rho} for rho in (0.05, 0.1)]
        runs = studies.carry_out_study(
            study_spec(methods=methods, data={"clients": 10, "validation": 0.2}), tmp_path / "study"
        )
        page = ff.compare(runs).to_html(tmp_path / "page.html")
        sizes = "((box) => [box.scrollWidth, box.clientWidth])(document.querySelector('.scroll'))"
        content, box = measured(page, tmp_path / "browser", 1280, sizes)
        assert content <= box

    @pytest.mark.parametrize(("width", "rows"), [(600, 2), (1280, 1)])
    def test_panels_stand_side_by_side_or_stack(self, seen: Seen, width: int, rows: int) -> None:
        found = seen(width)["tops of panels"]
        assert len(found) == 2
        assert len(set(found)) == rows

    def test_text_in_figures_is_as_large_as_on_the_page_nearly(self, seen: Seen) -> None:
        """Of 16 pixels of a paragraph, axes have at least 10 at either width."""
        for width in (600, 1280):
            assert min(h for h in seen(width)["heights of text"] if h) >= 10

    @pytest.mark.parametrize("dark", [False, True])
    def test_all_text_can_be_read(self, seen: Seen, dark: bool) -> None:
        """The contrast of text and paper is at least 4.5, that of curves 2.0; by the definition of WCAG 2."""
        colours = seen(1280, dark)["colours"]
        paper, texts, lines = colours["paper"], colours["texts"], colours["lines"]
        assert (luminance(paper) < 0.1) == dark
        assert len(texts) >= 2
        assert min(contrast(one, paper) for one in texts) >= 4.5
        assert len(lines) >= 3
        assert min(contrast(one, paper) for one in lines) >= 2.0


SCROLLING = """new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame)).then(() => {
  const boxes = [...document.querySelectorAll(".scroll")].filter((box) => box.clientWidth);
  const wide = (one) => one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX !== "visible";
  return {
    content: document.documentElement.scrollWidth, window: innerWidth, wide: boxes.map(wide),
    hints: boxes.map((box) => parseFloat(getComputedStyle(box, "::before").height) > 0),
    "out of reach": [...document.querySelectorAll("main *")].filter((one) => wide(one) && one.tabIndex < 0).length,
  };
})"""  # what depends on scrolling is computed with the first frame
COLOURS_OF_TEXT = """(() => {
  const found = (selector, name) => [...document.querySelectorAll(selector)].map((one) => getComputedStyle(one)[name]);
  const all = (selector, name) => [...new Set(found(selector, name))];
  return {
    paper: getComputedStyle(document.body).backgroundColor,
    texts: [...all("h1, p, td, th, a, figcaption, caption, summary", "color"), ...all("figure svg text", "fill")],
    lines: all(".curves svg path", "stroke").filter((colour) => colour.startsWith("rgb(")),
  };
})()"""
MEASURED = {  # in this order, by expressions
    "scrolling": SCROLLING,
    "tops of panels": "[...document.querySelectorAll('.curves svg')].map((svg) => svg.getBoundingClientRect().top)",
    "heights of text": (
        "[...document.querySelectorAll('figure svg text')].map((text) => text.getBoundingClientRect().height)"
    ),
    "colours": COLOURS_OF_TEXT,
}


def measured(page: Path, folder: Path, width: int, script: str, dark: bool = False) -> Any:
    """What an expression gives in the page, by a script that is added for the test."""
    folder.mkdir(exist_ok=True)
    copy = folder / "measured.html"
    added = f"<script>Promise.resolve({script}).then((it) => {{ document.title = JSON.stringify(it); }})</script>"
    copy.write_text(page.read_text().replace("</body>", f"{added}</body>"))
    dom, _ = browse(copy, width, folder / "profile", dark, patience=1000)
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom).group(1)))


def luminance(colour: str) -> float:
    channels = [int(one) / 255 for one in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def visible(page: str) -> str:
    """The text that a reader sees, without figures, LaTeX, CSV and BibTeX."""
    for part in (r"<style>.*?</style>", r"<svg.*?</svg>", r"<pre>.*?</pre>", r"<[^>]*>"):
        page = re.sub(part, " ", page, flags=re.DOTALL)
    return html.unescape(page)


def test_nothing_of_python_is_shown(report: Path) -> None:
    text = visible(report.read_text())
    assert "50 % of the clients each round" in text
    for leak in ("None", "inf", "Share(", "Client(", "alpha=", "lambda_max", "torch.float32", "True", "False", "nan"):
        assert leak not in text, leak


def test_it_opens_with_the_sentence_and_says_where_it_comes_from(report: Path) -> None:
    page = report.read_text()
    assert page.index('class="headline"') < page.index("<table")
    assert re.search(r'class="origin">fedflat [\d.]+, torch \S+; ', page)
    assert f"computed on {datetime.now(UTC).year}" in page


def test_latex_and_csv_are_there_to_copy(report: Path) -> None:
    page = report.read_text()
    _, runs = studies.stored_study(report.parent)
    for kind, text in (("latex", ff.compare(runs).to_latex()), ("csv", ff.compare(runs).to_csv())):
        [found] = re.findall(rf'<details class="{kind}">.*?<pre>(.*?)</pre>', page, re.DOTALL)
        assert html.unescape(found) == text


def test_a_target_that_nobody_reached_has_no_table_and_is_said(report: Path, tmp_path: Path) -> None:
    _, runs = studies.stored_study(report.parent)
    page = ff.compare(runs, targets=[0.9999]).to_html(tmp_path / "page.html").read_text()
    assert 'class="targets"' not in page
    assert "no run reached 100.0\N{NO-BREAK SPACE}%" in page
    assert 'class="targets"' in report.read_text()


def test_a_short_study_is_not_smoothed_and_its_long_mean_is_pointed_out(report: Path) -> None:
    page = report.read_text()
    assert "Nothing is smoothed" in page
    assert "mean of the last 6 of 6 evaluations" in page


def test_several_partitions_are_all_drawn(tmp_path: Path) -> None:
    runs = []
    for alpha in (0.1, 10.0):
        data = ff.data.load("digits", clients=10, partition=ff.Dirichlet(alpha=alpha), seed=0)
        for method in (ff.methods.FedAvg(), ff.methods.FedSAM()):
            runs.append(ff.Simulation(model="mlp", data=data, method=method, rounds=2).run())
    page = ff.compare(runs).to_html(tmp_path / "page.html").read_text()
    assert page.count('<figure class="partition beside">') == 2
    assert "4 variants of 2 methods" in page
    assert "FedSAM(alpha=10.0)" in page


def test_it_loads_nothing_and_runs_nothing(report: Path) -> None:
    text = report.read_text()
    outside = re.findall(r"""(?:src|href)=["'](?!#|data:)([^"']+)""", text)
    assert outside == []
    assert "<script" not in text
    assert "@import" not in text
    assert "url(http" not in text


def test_the_same_runs_give_the_same_page(report: Path) -> None:
    _, runs = studies.stored_study(report.parent)
    assert ff.compare(runs).to_html(report.parent / "again.html").read_text() == report.read_text()


def test_a_run_from_python_can_be_compared_without_a_folder(tmp_path: Path) -> None:
    data = ff.data.load("digits", clients=10, seed=0)
    runs = [
        ff.Simulation(model="mlp", data=data, method=method, rounds=3).run()
        for method in (ff.methods.FedAvg(), ff.methods.FedSAM())
    ]
    assert "digits" in ff.compare(runs).to_html(tmp_path / "page.html").read_text()


def test_a_page_that_cannot_be_written_is_named(report: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, runs = studies.stored_study(report.parent)
    with pytest.raises(ValueError, match=r"file cannot be made: File exists"):
        ff.compare(runs).to_html(tmp_path / "file" / "page.html")

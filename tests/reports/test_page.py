"""The page in a real browser: it has the table, the curves, and nothing goes wrong in the console."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fedflat as ff
from fedflat.experiments import studies
from support.browser import CHROMIUM, browse
from support.studies import study_spec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    runs = studies.study(study_spec(methods=["fedavg", {"name": "fedsam", "rho": 0.2}, "fedgf"]), folder)
    return ff.compare(runs).to_html(folder / "report.html")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; .ci/run installs Debian's")
class TestInABrowser:
    def test_it_shows_table_and_curves_without_a_console_message(self, report: Path, tmp_path: Path) -> None:
        dom, log = browse(report, 1100, tmp_path)
        table = re.search(r'<table class="comparison">.*?</table>', dom, re.DOTALL)
        assert table
        assert table.group().count("<tr") == 4
        assert all(name in table.group() for name in ("FedAvg", "FedSAM", "FedGF"))
        for figure in ("curves", "differences", "partition"):
            assert re.search(rf'<figure class="{figure}"><svg', dom), figure
        assert "CONSOLE" not in log

    def test_the_check_of_the_console_can_fail(self, tmp_path: Path) -> None:
        page = tmp_path / "broken.html"
        page.write_text("<script>nonsense()</script>")
        assert "CONSOLE" in browse(page, 800, tmp_path / "profile")[1]

    def test_a_narrow_window_does_not_scroll_sideways(self, report: Path, tmp_path: Path) -> None:
        """Measured by a script that is added for the test; wide tables scroll inside their own box."""
        page = tmp_path / "measured.html"
        measure = "<script>document.title = `${document.documentElement.scrollWidth} ${innerWidth}`</script>"
        page.write_text(report.read_text().replace("</body>", f"{measure}</body>"))
        dom, _ = browse(page, 500, tmp_path / "profile")
        content, window = map(int, re.search(r"<title>(\d+) (\d+)</title>", dom).groups())
        assert content <= window


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

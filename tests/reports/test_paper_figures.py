"""Figures for papers: sizes, fonts, names, and what is refused."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
import zlib
from math import inf, nan
from pathlib import Path

import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.metrics.flatness import Curve, Finding, Flatness, Measured
from fedflat.reports import paper_style
from fedflat.reports.figures import INK
from fedflat.reports.paper_figures import file_name, paper_figures, write_for_paper
from support.blank_figures import leave_blank
from support.finished_runs import Fake, split_data

POINTS = 72  # in an inch
WIDTHS = {"column": 3.35, "page": 6.9}
RUNS = [Fake(method, seed, [0.2, 0.5 + seed / 10, 0.6], columns={"test_loss": [2.0, 1.0, 0.5]})
        for method in ("FedAvg", "FedSAM", "FedGF") for seed in (0, 1)]  # fmt: skip


def measured(method: str, value: float, seed: int = 0) -> Fake:
    curve = Curve([0.0, 1.0], [value, 2 * value], "radius", "loss")
    values = {"steep(rho=0.1)": Measured(value, 0.25, "interval"), "steep/layer": Measured(value)}
    return Fake(method, seed, [0.5, 0.6], flatness=Flatness((Finding("Steep", "p", values, {"c": curve}),)))


def streams(pdf: bytes) -> list[bytes]:
    """The streams of a PDF, unpacked."""
    packed = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    return [zlib.decompress(each) for each in packed if each[:1] == b"\x78"]


def width_of(path: Path) -> float:
    """The width of a figure in inches, as its file states it."""
    if path.suffix == ".pdf":
        [box] = re.findall(rb"/MediaBox \[ ?([\d. ]+)\]", path.read_bytes())
        left, _, right, _ = map(float, box.split())
        return (right - left) / POINTS
    return float(ET.parse(path).getroot().attrib["width"].removesuffix("pt")) / POINTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper") / "new" / "figures"
    write_for_paper(ff.compare(RUNS), folder, ["test accuracy %"])
    return folder


def test_names_say_what_is_shown_and_how_wide_it_is(folder: Path) -> None:
    shown = ("accuracy", "accuracy-second-half", "accuracy-against-gradients", "accuracy-against-bytes-sent",
             "accuracy-differences", "test-loss")  # fmt: skip
    expected = {f"{name}-{size}.{kind}" for name in shown for size in WIDTHS for kind in ("pdf", "svg")}
    assert {path.name for path in folder.iterdir()} == expected | {"table.tex"}
    for size, width in WIDTHS.items():
        for path in folder.glob(f"*-{size}.*"):
            assert width_of(path) == pytest.approx(width, abs=0.001), path


def test_the_table_has_the_chosen_columns(folder: Path) -> None:
    assert (folder / "table.tex").read_text() == ff.compare(RUNS).to_latex(columns=["test accuracy %"])


def test_fonts_of_a_pdf_are_embedded_truetype(folder: Path) -> None:
    for path in folder.glob("*.pdf"):
        pdf = path.read_bytes()
        types = set(re.findall(rb"/Subtype /(Type[0-3]|CIDFontType\d|TrueType|Type1)\b", pdf))
        assert types == {b"Type0", b"CIDFontType2"}, path
        descriptors = len(re.findall(rb"/Type /FontDescriptor\b", pdf))
        assert descriptors == len(re.findall(rb"/FontFile2 \d+ 0 R", pdf)) > 0
        programs = [each for each in streams(pdf) if each[:4] in (b"\x00\x01\x00\x00", b"true")]
        assert len(programs) >= descriptors, "each font's program is in the file"


def test_an_svg_needs_no_font_and_loads_nothing(folder: Path) -> None:
    for path in folder.glob("*.svg"):
        root = ET.parse(path).getroot()
        assert not [part for part in root.iter() if part.tag.endswith(("}text", "}image"))], path
        links = [value for part in root.iter() for name, value in part.attrib.items() if name.endswith("href")]
        assert links
        assert all(link.startswith("#") for link in links)


def test_the_same_runs_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for name in ("accuracy-page.pdf", "accuracy-page.svg"):
        ff.compare(RUNS).figure(tmp_path / name, show="accuracy", size="page")
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_the_name_of_the_file_says_what_is_drawn(tmp_path: Path) -> None:
    path = ff.compare(RUNS).figure(tmp_path / "new" / "test-loss.PDF")
    assert path.read_bytes().startswith(b"%PDF-")
    assert width_of(ff.compare(RUNS).figure(str(tmp_path / "accuracy.svg"))) == pytest.approx(3.35, abs=0.001)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "accuracy.png"}, r"path: 'accuracy.png' ends in neither .pdf nor .svg"),
        ({"path": "accuracy"}, r"path: 'accuracy' ends in neither"),
        ({"path": "a.pdf"}, r"show: these runs have no figure 'a'; they have accuracy, .*test-loss"),
        ({"path": "a.pdf", "show": "steep-rho-0.1"}, r"show: these runs have no figure 'steep-rho-0.1'"),
        ({"path": "a.pdf", "show": "training-loss"}, r"no figure 'training-loss'"),
        ({"path": "accuracy.pdf", "size": "poster"}, r"size = 'poster' is unknown; known are column, page"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused_in_one_line(tmp_path: Path, settings: dict[str, str], message: str) -> None:
    path, size = tmp_path / settings["path"], settings.get("size", "column")
    with pytest.raises(InputError, match=message) as caught:
        ff.compare(RUNS).figure(path, settings.get("show"), size)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_column_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="columns: 'loss' is not in the table; it has 'test accuracy %'"):
        write_for_paper(ff.compare(RUNS), tmp_path / "figures", ["test accuracy %", "loss"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "figures").write_text("mine")
    for write in (write_for_paper, lambda made, path: made.figure(path / "accuracy.pdf")):
        with pytest.raises(InputError, match="figures"):
            write(ff.compare(RUNS), tmp_path / "figures")
    assert (tmp_path / "figures").read_text() == "mine"


def test_measures_of_flatness_have_a_figure_if_every_run_has_them() -> None:
    runs = [measured("FedAvg", 1.0), measured("FedSAM", 2.0)]
    assert {"steep-rho-0.1", "c-curve"} <= set(paper_figures(ff.compare(runs)))
    without = paper_figures(ff.compare([*runs, Fake("FedGF", 0, [0.5])]))
    assert not {"steep-rho-0.1", "c-curve"} & set(without)


def points(figure) -> list[tuple[float, float, float]]:
    """Value and ends of the error bar of each row, from the last to the first."""
    axes = Figure().subplots()
    figure.draw(axes, [])
    found = []
    for container in axes.containers:
        line, _, bars = container.lines
        x = line.get_xdata()[0]
        low, high = bars[0].get_segments()[0][:, 0] if bars else (x, x)
        found.append((x, low, high))
    return found


def test_points_have_the_spread_of_seeds_or_the_measures_own_error() -> None:
    """Two seeds with 1 and 3: 2 ± sqrt(2); one seed has the error 0.25 that was measured; no error of infinity."""
    runs = [measured("FedAvg", 1.0), measured("FedAvg", 3.0, seed=1), measured("FedSAM", 5.0), measured("FedGF", inf)]
    found = points(paper_figures(ff.compare(runs))["steep-rho-0.1"])
    assert found == [(5, 4.75, 5.25), (2, pytest.approx(2 - 2**0.5), pytest.approx(2 + 2**0.5))]


def test_a_measure_that_is_no_number_has_no_figure() -> None:
    assert "steep-rho-0.1" not in paper_figures(ff.compare([measured("FedAvg", nan), measured("FedSAM", inf)]))


def test_several_tasks_are_several_figures() -> None:
    runs = [Fake(method, 0, [0.5, 0.6], data=split_data("digits", 50, ff.Dirichlet(alpha=alpha)))
            for alpha in (0.1, 1.0) for method in ("FedAvg", "FedSAM")]  # fmt: skip
    names = set(paper_figures(ff.compare(runs)))
    assert {"accuracy-alpha-0.1", "accuracy-alpha-1.0"} <= names
    assert "accuracy" not in names


def test_names_from_data_sets_stay_within_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of data sets come from files; two of them may give the same name of a file."""
    names = ["../../etc/passwd", "..\\..\\etc\\passwd", "x" * 5000, "x" * 5001, "データ", "$\\frac$"]
    runs = [Fake("FedAvg", 0, [0.5, 0.6], data=split_data(name)) for name in names]
    found = paper_figures(ff.compare(runs))
    assert len([name for name in found if name.startswith("accuracy-against-gradients")]) == len(names)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,90}", name) for name in found)
    leave_blank(monkeypatch)
    written = write_for_paper(ff.compare(runs[:2]), tmp_path / "figures")
    assert {path.parent for path in written} == {tmp_path / "figures"}
    assert len(set(written)) == len(list((tmp_path / "figures").iterdir()))
    assert file_name("Accuracy second half alpha=0.1") == "accuracy-second-half-alpha-0.1"


def test_a_target_is_drawn_if_a_user_gave_it() -> None:
    lines = {}
    for targets in ((), (0.55,)):
        axes = Figure().subplots()
        paper_figures(ff.compare(RUNS, targets=targets))["accuracy"].draw(axes, [{"color": INK}] * 3)
        lines[targets] = [line.get_ydata()[0] for line in axes.lines]
    assert sorted(set(lines[(0.55,)]) - set(lines[()])) == [pytest.approx(55.0)]


def test_a_single_evaluation_is_a_point(tmp_path: Path) -> None:
    """A line of a baseline has no marker, and those of other lines stand at some places only; a point needs one."""
    comparison = ff.compare([Fake("FedAvg", 0, [0.5]), Fake("FedSAM", 0, [0.6])])
    text = comparison.figure(tmp_path / "accuracy.svg").read_text()
    axes = text[text.index('id="axes_1"') : text.index('id="legend_1"')]
    for colour in (INK, paper_style.COLOURS[0]):
        assert re.search(
            rf'<use xlink:href="#[^"]*" x="[^"]*" y="[^"]*" style="fill: {colour}; stroke: {colour}"', axes
        )


@pytest.mark.parametrize("size", WIDTHS)
def test_no_text_is_cut_off(size: str) -> None:
    """Labels of rows take most of a column's width here."""
    runs = [Fake("FedAvg", seed, [0.5, 0.6]) for seed in (0, 1)]
    runs += [Fake("FedSAM", seed, [0.5, 0.6 + seed / 10], {"rho": rho, "a_long_setting": rho / 128})
             for rho in (0.125, 0.0625) for seed in (0, 1)]  # fmt: skip
    for figure in paper_figures(ff.compare(runs)).values():
        with rc_context(paper_style.PAPER):
            drawn = figure._drawn(size)
            FigureCanvasAgg(drawn).draw()
            texts = [text for text in drawn.findobj(Text) if text.get_text() and text.get_visible()]
            assert len(texts) > 5
            box = drawn.get_tightbbox().bounds  # in inches, of everything that is drawn
        assert box[0] >= -0.01, figure.name
        assert box[1] >= -0.01, figure.name
        assert box[0] + box[2] <= WIDTHS[size] + 0.01, figure.name
        assert box[1] + box[3] <= drawn.get_figheight() + 0.01, figure.name

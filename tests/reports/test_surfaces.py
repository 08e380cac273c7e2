"""Figures that share what must be shared, and the page in a real browser: it turns and is silent."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedflat.metrics.features import FeatureMap
from fedflat.metrics.flatness.surface import Mark, Surface
from fedflat.reports import surfaces as module
from fedflat.reports.surfaces import Scale, contours, feature_maps, profiles, write_landscape
from support.browser import CHROMIUM, browse

HOSTILE = "</script><script>hostile()</script> & 'it' \"said\" $x$"


def bowl(label: str, steepness: float, part: str = "global model", points: int = 11) -> Surface:
    """0.5 + steepness (x^2 + y^2 / 2)."""
    x = np.linspace(-1, 1, points)
    loss = 0.5 + steepness * (x**2 + x[:, None] ** 2 / 2)
    return Surface(label, part, ("along direction 1", "along direction 2"), x, x, loss,
                   (Mark("the model", 0.0, 0.0, 0.5),), "by hand")  # fmt: skip


def line(label: str, steepness: float, part: str = "global model") -> Surface:
    whole = bowl(label, steepness, part)
    return Surface(label, part, whole.axes, whole.x, np.zeros(1), whole.loss[5:6], whole.marks, whole.protocol)


def blobs(label: str, classes: int = 3) -> FeatureMap:
    y = np.arange(60) % classes
    return FeatureMap(label, np.random.default_rng(0).normal(size=(60, 2)) + 9.0 * y[:, None], y, "by hand")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures themselves, before they become text."""
    figures: list[Figure] = []
    keep = module.svg
    monkeypatch.setattr(module, "svg", lambda figure, label: figures.append(figure) or keep(figure, label))
    return figures


class TestFigures:
    def test_contours_share_axes_levels_and_colours(self, drawn: list[Figure]) -> None:
        near = bowl("FedSAM", 0.1)
        near = Surface(near.label, near.part, near.axes, near.x / 2, near.y / 2, near.loss, near.marks, near.protocol)
        contours([bowl("FedAvg", 3.0), near])
        *panels, bar = drawn[0].axes
        assert [axes.get_title() for axes in panels] == ["FedAvg, global model", "FedSAM, global model"]
        filled = [axes.collections[0] for axes in panels]
        for one in filled:
            np.testing.assert_allclose(one.levels, np.linspace(0.5, 5.0, 17))
            assert (one.norm.vmin, one.norm.vmax) == (0.5, 5.0)
        assert panels[0].get_xlim() == panels[1].get_xlim()
        assert panels[0].get_ylim() == panels[1].get_ylim()
        assert bar.get_ylabel() == "loss"

    def test_a_scale_is_logarithmic_where_losses_differ_much_and_forgets_what_is_not_finite(self) -> None:
        assert not Scale.shared([bowl("a", 5.0)]).logarithmic
        steep = bowl("b", 100.0)
        steep.loss[0, 0], steep.loss[0, 1] = np.inf, np.nan
        scale = Scale.shared([bowl("a", 1.0), steep])
        assert scale.logarithmic
        assert (scale.lowest, scale.highest) == (0.5, 150.5)
        np.testing.assert_allclose(np.diff(np.log(scale.levels)), np.log(scale.highest / 0.5) / 16)

    @pytest.mark.slow
    @pytest.mark.parametrize("loss", [0.0, 2.3, np.inf])
    def test_surfaces_without_any_height_are_drawn_too(self, loss: float) -> None:
        flat = bowl("a", 1.0)
        flat.loss[:] = loss
        assert ET.fromstring(contours([flat])).tag.endswith("svg")
        assert ET.fromstring(profiles([flat])).tag.endswith("svg")
        assert json.loads(numbers_of(page([flat], [], "title")))["highest"] > 0

    def test_profiles_lie_over_each_other_on_shared_axes(self, drawn: list[Figure]) -> None:
        profiles(
            [bowl("FedAvg", 1.0), bowl("FedAvg", 2.0, "client 4"), bowl("FedSAM", 3.0), line("FedSAM", 4.0, "client 4")]
        )
        left, right = drawn[0].axes
        assert left.get_title() == "global models"
        assert right.get_title() == "local models on their own samples"
        assert left.get_ylim() == right.get_ylim()
        for axes, steepness in ((left, (1.0, 3.0)), (right, (2.0, 4.0))):
            for curve, s in zip(axes.lines, steepness, strict=True):
                np.testing.assert_allclose(curve.get_ydata(), 0.5 + s * curve.get_xdata() ** 2)
        assert left.lines[0].get_color() == right.lines[0].get_color() != left.lines[1].get_color()

    def test_a_plane_has_no_profile_and_names_its_models(self, drawn: list[Figure]) -> None:
        marks = (Mark("A", -0.5, 0.0, 0.6), Mark("B", 0.5, 0.0, 0.7), Mark("C", 0.0, 0.5, 0.8, distance=2.0))
        one = bowl("A, B, C", 1.0, "plane through three models")
        plane = Surface(one.label, one.part, one.axes, one.x, one.y, one.loss, marks, one.protocol)
        assert profiles([plane]) is None
        contours([plane])
        assert [note.get_text() for note in drawn[0].axes[0].texts] == ["A", "B", "C"]
        text = page([plane], [], "title")
        assert "C: 0.8, 2 off the plane" in text
        assert "floats at its own loss" in text

    def test_maps_share_axes_and_colours_of_classes(self, drawn: list[Figure]) -> None:
        wide = blobs("FedSAM")
        feature_maps([blobs("FedAvg"), FeatureMap(wide.label, 3 * wide.points, wide.classes, wide.protocol)])
        one, other = drawn[0].axes
        assert one.get_xlim() == other.get_xlim()
        assert one.get_ylim() == other.get_ylim()
        for mine, theirs in zip(one.collections, other.collections, strict=True):
            assert mine.get_label() == theirs.get_label()
            np.testing.assert_array_equal(mine.get_facecolor(), theirs.get_facecolor())
        assert len({tuple(some.get_facecolor()[0]) for some in one.collections}) == 3

    @pytest.mark.slow
    def test_many_classes_and_samples_stay_small(self) -> None:
        y = np.arange(3000) % 100
        many = FeatureMap("FedAvg", np.random.default_rng(0).normal(size=(3000, 2)), y, "by hand")
        assert len(feature_maps([many])) < 400_000


def page(surfaces: list[Surface], maps: list[FeatureMap], title: str, notes: Sequence[str] = ()) -> str:
    with TemporaryDirectory() as folder:
        return write_landscape(surfaces, maps, Path(folder), title, notes).read_text()


def numbers_of(text: str) -> str:
    return re.search(r'<script type="application/json" id="numbers">(.*?)</script>', text, re.DOTALL).group(1)


class TestPage:
    def test_everything_is_escaped(self, tmp_path: Path) -> None:
        named = bowl(HOSTILE, 1.0)
        named = Surface(HOSTILE, HOSTILE, (HOSTILE, "y"), named.x, named.y, named.loss,
                        (Mark(HOSTILE, 0.0, 0.0, 0.5), Mark("b", 0.5, 0.0, 0.5)), HOSTILE)  # fmt: skip
        text = page([named, bowl("b", 1.0)], [blobs(HOSTILE)], HOSTILE, [HOSTILE])
        assert "<script>hostile" not in text
        assert text.count("<script") == 2, "the numbers and the page's own"
        assert json.loads(numbers_of(text))["surfaces"][0]["title"] == f"{HOSTILE}, {HOSTILE}"
        for figure in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
            ET.fromstring(figure)

    def test_nothing_is_loaded_from_elsewhere(self) -> None:
        text = page([bowl("FedAvg", 1.0)], [blobs("FedAvg")], "title")
        assert re.findall(r"""(?:src|href)=["'](?!#|data:)([^"']+)""", text) == []
        assert "@import" not in text
        assert "url(http" not in text
        assert "default-src 'none'" in text, "the browser is told to load nothing"

    def test_the_numbers_are_those_of_the_surfaces(self) -> None:
        steep = bowl("FedSAM", 3.0)
        steep.loss[2, 3] = np.nan
        content = json.loads(numbers_of(page([bowl("FedAvg", 1.0), steep], [], "title")))
        assert (content["lowest"], content["highest"]) == (0.5, 5.0)
        assert content["surfaces"][1]["loss"][2][3] is None
        np.testing.assert_allclose(content["surfaces"][0]["loss"], bowl("FedAvg", 1.0).loss, rtol=1e-4)

    def test_without_scripts_it_has_no_dead_controls_and_says_so(self) -> None:
        text = page([bowl("FedAvg", 1.0)], [], "title")
        assert re.search(
            r'<section id="turned" hidden>.*<canvas.*</section>\n<noscript>.*With scripts', text, re.DOTALL
        )
        assert re.search(r'<figure class="contours">[^\n]*<svg', text.partition("</noscript>")[2])

    def test_profiles_alone_need_no_script(self) -> None:
        text = page([line("FedAvg", 1.0)], [], "title")
        assert "<script" not in text
        assert "<canvas" not in text
        assert re.search(r'<figure class="profiles">[^\n]*<svg', text)

    @pytest.mark.slow
    def test_files_are_written_and_what_cannot_be_is_named(self, tmp_path: Path) -> None:
        surfaces, maps = [bowl("FedAvg", 1.0)], [blobs("FedAvg")]
        assert write_landscape(surfaces, maps, tmp_path / "out", "title") == tmp_path / "out" / "landscape.html"
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            "landscape.html", "contours.svg", "profiles.svg", "features.svg"}  # fmt: skip
        before = (tmp_path / "out" / "landscape.html").read_bytes()
        write_landscape(surfaces, maps, tmp_path / "out", "title")
        assert (tmp_path / "out" / "landscape.html").read_bytes() == before, "the same surfaces give the same page"
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match=r"file/out cannot be made: Not a directory"):
            write_landscape(surfaces, [], tmp_path / "file" / "out", "title")


USE = """<script>
const canvas = document.querySelector("canvas"), found = {};
const press = (key) => {
  canvas.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
  return canvas.toDataURL();
};
const choose = (name, k) => { document.querySelectorAll(`input[name=${name}]`)[k].click(); return canvas.toDataURL(); };
const point = (type, x, y) => { const b = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent(type, { clientX: b.left + x, clientY: b.top + y, pointerId: 1 })); };
const first = canvas.toDataURL(), words = (selector) => document.querySelector(selector).textContent;
found.said = words("output");
const turns = (key) => press(key) !== first && press("Home") === first;
found.keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].map(turns);
found.other = press("x") === first;
found.surface = choose("surface", 1) !== first;
found.label = canvas.getAttribute("aria-label");
found.same = choose("surface", 0) === first;
found.scale = choose("scale", 1) !== first;
choose("scale", 0);
point("pointermove", canvas.clientWidth / 2, canvas.clientHeight / 2);
found.read = words("output");
point("pointerleave", 0, 0);
found.left = canvas.toDataURL() === first;
canvas.setPointerCapture = () => {};
point("pointerdown", 50, 50); point("pointermove", 90, 60);
found.dragged = canvas.toDataURL() !== first;
point("pointerup", 90, 60);
found.width = [document.documentElement.scrollWidth, innerWidth];
document.title = JSON.stringify(found);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine; .ci/run installs Debian's")
class TestInABrowser:
    def used(self, tmp_path: Path, width: int) -> dict[str, Any]:
        """What a visitor finds who tries everything."""
        text = page([bowl(HOSTILE, 3.0), bowl("FedSAM", 0.5)], [blobs("FedAvg")], "title")
        (tmp_path / "page.html").write_text(text.replace("</body>", USE))
        dom, log = browse(tmp_path / "page.html", width, tmp_path / "profile")
        assert "CONSOLE" not in log
        title = re.search(r"<title>(.*?)</title>", dom, re.DOTALL).group(1)
        found: dict[str, Any] = json.loads(title.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        return found

    @pytest.mark.slow
    @pytest.mark.parametrize("width", [1100, 500])
    def test_it_turns_by_keys_and_pointer_shows_every_surface_and_says_the_loss(
        self, tmp_path: Path, width: int
    ) -> None:
        found = self.used(tmp_path, width)
        assert found["said"] == f"{HOSTILE}, global model: loss 0.5 at the model"
        assert found["keys"] == [True] * 4, "each turns it, and Home turns it back"
        assert found["other"], "other keys do nothing"
        assert found["surface"]
        assert found["label"].startswith("Loss surface of FedSAM, global model, seen from 29 degrees above")
        assert found["same"]
        assert found["scale"]
        assert found["left"]
        assert found["dragged"]
        x, y, loss = map(float, re.search(r" at \((.*), (.*)\): loss (.*)$", found["read"]).groups())
        assert loss == pytest.approx(0.5 + 3.0 * (x**2 + y**2 / 2), abs=1e-4)
        content, window = found["width"]
        assert content <= window, "no scrolling sideways"

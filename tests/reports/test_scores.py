"""Reports of scores other than accuracy: of a perplexity the lower one is ahead, bold, and reaches a target."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.task import FORMS
from fedflat.metrics.protocols import SCORES, AccuracyCurve
from fedflat.reports.columns import columns
from fedflat.reports.tables import headline
from support.finished_runs import Fake


@dataclass
class Scored(Fake):
    """A finished run whose numbers are another score."""

    score: str = "test_perplexity"
    clients: None = None

    @property
    def metrics(self) -> pa.Table:
        names = {"test_accuracy": self.score}
        return super().metrics.rename_columns([names.get(name, name) for name in super().metrics.column_names])

    @property
    def summary(self) -> dict[str, float]:
        return {name.replace("test_accuracy", self.score): value for name, value in super().summary.items()}


def runs(method: str, *values: float, score: str = "test_perplexity") -> list[Scored]:
    return [Scored(method, seed, [50.0, 20.0, value], score=score) for seed, value in enumerate(values)]


LOWER = ff.compare([*runs("FedAvg", 10, 10, 10), *runs("FedSAM", 8, 9, 8), *runs("FedGF", 11, 12, 11)], targets=[9.5])


def cells(title: str) -> tuple[list[str], set[str]]:
    (found,) = [one for one in columns(LOWER) if one.title.startswith(title)]
    return [found.cell(row) for row in LOWER.rows], found.best(LOWER.rows)


def test_the_lower_perplexity_is_ahead() -> None:
    """Differences -2, -1, -2: mean -5/3, s = 0.577, half an interval 4.303 / 3 = 1.434."""
    assert headline(LOWER) == (
        "FedSAM is ahead of FedAvg by 1.67 of test perplexity (95 % interval -3.10 to -0.23, 3 seeds)."
    )
    assert cells("test perplexity") == (["10.00 ± 0.00", "8.33 ± 0.58", "11.33 ± 0.58"], {"FedSAM"})
    assert cells("Δ to FedAvg") == (["–", "-1.67 [-3.10, -0.23]", "+1.33 [-0.10, +2.77]"], {"FedSAM"})
    assert cells("rounds to 9.5")[0] == ["–", "3 (3/3)", "–"]


def test_the_baseline_of_a_perplexity_is_ahead_if_all_others_are_higher() -> None:
    """Differences 2, 1, 2."""
    found = ff.compare([*runs("FedAvg", 10, 10, 10), *runs("FedGF", 12, 11, 12)])
    assert headline(found).startswith("FedAvg is ahead of all others; the closest, FedGF, is 1.67 of test perplexity")
    (shown,) = [one for one in columns(found) if one.title == "test perplexity"]
    assert shown.best(found.rows) == {"FedAvg"}
    level = ff.compare([*runs("FedAvg", 10, 10, 10), *runs("FedGF", 10, 12, 8), *runs("FedSAM", 11, 13, 9)])
    assert "the lowest difference is FedGF's, +0.00 of test perplexity" in headline(level)


def test_a_curve_of_perplexities_reaches_its_target_from_above() -> None:
    rows = [{"t": t, "test_perplexity": p, "test_accuracy": 0.1 * t, "gradients": t, "bytes_down": 0, "bytes_up": 1,
             "validation_accuracy": v} for t, (p, v) in enumerate([(50, 0.1), (9, 0.4), (12, 0.3)])]  # fmt: skip
    curve = AccuracyCurve.of(rows, 1.0)
    assert curve.accuracy.tolist() == [50, 9, 12]
    assert curve.best_on_test == 9
    assert curve.best_on_validation() == (2, 9)
    assert [curve.reached(target) and curve.reached(target).rounds for target in (60, 9, 8)] == [1, 2, None]


def test_a_page_shows_the_score_and_its_unit(tmp_path) -> None:
    page = LOWER.to_html(tmp_path / "page.html").read_text()
    assert re.search(r"<h2>Perplexity against rounds</h2>", page)
    assert "<strong>8.33 ± 0.58</strong>" in page
    assert "test perplexity minus FedAvg&#x27;s<" in page or "test perplexity minus FedAvg's<" in page
    assert "accuracy %" not in re.sub(r"clients, [^<]*", "", page)
    of_pictures = ff.compare(runs("FedAvg", 0.5, 0.6, score="test_mean_iou"))
    page = of_pictures.to_html(tmp_path / "page.html").read_text()
    assert "Mean IoU against rounds" in page
    assert headline(of_pictures).startswith("FedAvg has 55.00 ± 7.07 % test mean IoU (2 seeds)")


@pytest.mark.parametrize(
    ("given", "targets", "message"),
    [
        (runs("FedAvg", 3), [0.5], r"targets: 0.5 is no test perplexity in \(1, inf\)"),
        (runs("FedAvg", 0.5, score="test_mean_iou"), [2], r"targets: 2 is no test mean IoU in \(0, 1\)"),
        ([*runs("FedAvg", 3), *runs("FedSAM", 0.5, score="test_accuracy")], [],
         "the runs have different scores, test perplexity and test accuracy; compare them apart"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_one_line(given: list[Scored], targets: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ff.compare(given, targets=targets)


def test_every_task_has_a_score_that_reports_know() -> None:
    assert {form.score for form in FORMS.values()} == set(SCORES)

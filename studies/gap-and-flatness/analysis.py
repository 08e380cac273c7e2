"""The analysis of this study as its README planned it, from the parquet files of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from scipy.stats import ttest_1samp

from ..inference import LEVEL, Correlation, draws, holm, spearman, with_interval
from .plan import CHANCE, GAPS, PLAN, Configuration, Part, Plan, Scores, configuration_of, ranked

MARGIN = 1.0  # points: interactions below it do not matter
LEAST_GAP = 2.0  # points, by which a base's gap at `few` exceeds that at `many`
ONE_GRADIENT = ("FedLESAM",)  # flat methods that take one gradient a step, as their bases do
DRAWS = 2_000  # of the bootstrap
MORE, LESS, NO_DIFFERENCE, UNDECIDED = "more with few", "less with few", "no difference that matters", "undecided"
SCALE = "depends on the scale"
NARROWS = "narrows the gap"
OTHER_SIGN = "not of the same sign at the same step size"
NO_VERDICT = "no verdict"
# Columns of flatness by what they are called. LPF contains the training loss F, so its rise is what is shown.
MEASURES = {
    "gradient_norm": "gradient norm", "sharpness": "sharpness", "lambda_max": "largest eigenvalue", "trace": "trace",
    "lpf_rise": "LPF - F",
}  # fmt: skip
FILLED = ("accuracy", "accuracy_of_final_model", "train_accuracy")  # columns that are CHANCE for a run that diverged
Row = dict[str, Any]
Numbers = np.ndarray  # one for each seed


@dataclass(frozen=True)
class Results:
    """The runs that have ended."""

    runs: list[Row]
    plan: Plan = PLAN

    @classmethod
    def load(cls, folder: Path, plan: Plan = PLAN) -> Results:
        """Return the runs in `folder`, which collect.py has written; none if it has not."""
        file = folder / "runs.parquet"
        rows = pq.read_table(file).to_pylist() if file.exists() else []
        return cls([row | dict.fromkeys(FILLED, CHANCE) if row["diverged"] else row for row in rows], plan)

    @cached_property
    def parts(self) -> list[Part]:
        """The parts of the plan."""
        return self.plan.parts(self.runs)

    @cached_property
    def choice_has_ended(self) -> bool:
        """Whether every run that chooses for the comparison has ended."""
        return all(part.has_ended(self.runs) for part in self.plan.choice(self.runs))

    @cached_property
    def has_ended(self) -> bool:
        """Whether every run of the plan has ended. Before that there are no results of the comparison."""
        return all(part.has_ended(self.runs) for part in self.parts)

    def of(self, name: str, gap: str) -> list[Row]:
        """Return the runs of a part, in order of methods and seeds."""
        rows = [row for part in self.parts if (part.name, part.gap) == (name, gap) for row in part.ended(self.runs)]
        return sorted(rows, key=lambda row: (self.plan.methods.index(row["method"]), row["seed"]))

    def arms(self, name: str) -> Arms:
        """Return the arms of a part of the comparison, by gap and method."""
        rows = {gap: self.of(name, gap) for gap in GAPS}
        return {
            (gap, method): Arm(*(np.array([row[column] for row in own]) for column in (*FILLED, "diverged")))
            for gap in GAPS
            for method in self.plan.methods
            if (own := [row for row in rows[gap] if row["method"] == method])
        }

    @cached_property
    def compared(self) -> Arms:
        """The arms of the comparison."""
        return self.arms("compare")

    @cached_property
    def same_step_size(self) -> Arms:
        """The arms of the comparison, with the flat ones at the step size of their base."""
        return self.compared | self.arms("same-step-size")


@dataclass(frozen=True)
class Arm:
    """One method at one gap with all seeds, in order; accuracies are in [0, 1]."""

    accuracy: Numbers
    final: Numbers  # accuracy of the final model
    training: Numbers
    diverged: Numbers

    @property
    def gap(self) -> Numbers:
        """Training minus test accuracy of the final model."""
        return self.training - self.final


Arms = dict[tuple[str, str], Arm]


@dataclass(frozen=True)
class Estimate:
    """The mean of numbers by seed with the t test that it is 0, and t intervals."""

    mean: float
    low: float  # of the interval at 95 %
    high: float
    p: float  # two-sided
    inner: tuple[float, float]  # the interval at 90 %
    deviation: float
    n: int

    @property
    def is_small(self) -> bool:
        """Whether the interval at 90 % lies within the margin."""
        return max(map(abs, self.inner)) < MARGIN


def estimate(values: Numbers) -> Estimate | None:
    """Return the estimate from numbers by seed; None from fewer than two."""
    if len(values) < 2:
        return None
    test = ttest_1samp(values, 0.0)
    low, high = test.confidence_interval(1 - LEVEL)
    inner = test.confidence_interval(1 - 2 * LEVEL)
    deviation = float(np.std(values, ddof=1))
    ends = (float(inner.low), float(inner.high))
    return Estimate(float(np.mean(values)), float(low), float(high), float(test.pvalue), ends, deviation, len(values))


@dataclass(frozen=True)
class Contrast:
    """A flat method minus its base, paired by seed, in points by gap; and logarithms of the ratio of their errors."""

    flat: str
    base: str
    lead: dict[str, Numbers]
    logarithm: dict[str, Numbers]  # of the base's error by the flat method's
    training: dict[str, Numbers]  # change of the training accuracy
    gap: dict[str, Numbers]  # change of the gap
    base_gap: dict[str, Numbers]
    kept: Numbers  # seeds with which none of the four runs diverged

    @property
    def interaction(self) -> Numbers:
        """Lead at few minus lead at many."""
        return self.lead["few"] - self.lead["many"]

    @property
    def logarithmic_interaction(self) -> Numbers:
        """The same of the logarithms."""
        return self.logarithm["few"] - self.logarithm["many"]


def contrasts(arms: Arms, plan: Plan = PLAN) -> list[Contrast]:
    """Return the contrasts of the plan."""
    return [_contrast(arms, flat, base) for flat, base in plan.base_of.items()]


def _contrast(arms: Arms, flat: str, base: str) -> Contrast:
    pairs = {gap: (arms[gap, flat], arms[gap, base]) for gap in GAPS}
    return Contrast(
        flat, base,
        {gap: 100 * (f.accuracy - b.accuracy) for gap, (f, b) in pairs.items()},
        {gap: np.log((1 - b.accuracy) / (1 - f.accuracy)) for gap, (f, b) in pairs.items()},
        {gap: 100 * (f.training - b.training) for gap, (f, b) in pairs.items()},
        {gap: 100 * (f.gap - b.gap) for gap, (f, b) in pairs.items()},
        {gap: 100 * b.gap for gap, (_, b) in pairs.items()},
        ~np.any([one.diverged for pair in pairs.values() for one in pair], axis=0),
    )  # fmt: skip


@dataclass(frozen=True)
class Primary:
    """The means over the contrasts, one number for each seed."""

    interaction: Estimate
    logarithm: Estimate
    lead: dict[str, Estimate]

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the interaction in points is significant."""
        return self.interaction.p < LEVEL

    @property
    def verdict(self) -> str:
        """One of the words of the plan."""
        return word(self.interaction, self.interaction.p, self.logarithm, self.logarithm.p)


def primary(every: Sequence[Contrast], whole: bool = True) -> Primary | None:
    """Return the primary test; without the seeds of runs that diverged unless it is `whole`. None with too few seeds.

    Contrasts share bases, and all share seeds; since a seed gives one number, this needs no model of how they depend.
    """
    kept = np.all([one.kept for one in every], axis=0) | whole

    def of_mean(values: Sequence[Numbers]) -> Estimate | None:
        return estimate(np.mean(values, axis=0)[kept])

    points, logarithm = (
        of_mean([getattr(one, name) for one in every]) for name in ("interaction", "logarithmic_interaction")
    )
    leads = {gap: found for gap in GAPS if (found := of_mean([one.lead[gap] for one in every]))}
    return Primary(points, logarithm, leads) if points and logarithm else None


def word(points: Estimate, p: float, logarithm: Estimate, logarithm_p: float) -> str:
    """Return what the plan calls an interaction, given it on both scales with p-values, corrected if there are several.

    An interaction that is certain has its sign as a word, however small it is. Signs that differ are no finding where
    neither scale is certain: one of the two is then often near zero.
    """
    certain = p < LEVEL
    if certain != (logarithm_p < LEVEL) or (certain and points.mean * logarithm.mean < 0):
        return SCALE
    if certain:
        return MORE if points.mean > 0 else LESS
    return NO_DIFFERENCE if points.is_small else UNDECIDED


@dataclass(frozen=True)
class Judged:
    """A contrast with its tests."""

    contrast: Contrast
    points: Estimate
    logarithm: Estimate
    corrected: float  # p of the points, by Holm's procedure over all contrasts
    logarithm_corrected: float
    narrows: bool  # whether the change of the gap at few is certain and negative
    same_step_size: Estimate  # the interaction at the step size of the base
    has_gap: bool  # whether the base passed the manipulation check

    @property
    def has_other_sign(self) -> bool:
        """Whether the interaction has another sign at the same step size."""
        return self.points.mean * self.same_step_size.mean <= 0

    @property
    def verdict(self) -> str:
        """The words of the plan."""
        if not self.has_gap:
            return NO_VERDICT
        said = word(self.points, self.corrected, self.logarithm, self.logarithm_corrected)
        said += f", {NARROWS}" if self.narrows and said == MORE else ""
        return f"{said}, {OTHER_SIGN}" if self.has_other_sign else said


def judged(results: Results, whole: bool = True) -> list[Judged]:
    """Return every contrast with its tests; without the seeds of runs that diverged unless `whole`.

    A contrast is left out if fewer than two seeds are left.
    """
    every, same = contrasts(results.compared, results.plan), contrasts(results.same_step_size, results.plan)
    pairs = [pair for pair in zip(every, same, strict=True) if whole or (pair[0].kept & pair[1].kept).sum() > 1]
    tests = [_tests(one, at_same, whole) for one, at_same in pairs]
    corrected = [holm([None if test is None else test.p for test in column]) for column in zip(*tests, strict=True)]
    has_gap = {one.base: one.passes for one in manipulation(results)}
    return [
        Judged(one, points, logarithm, p, log_p, gap.mean < 0 and gap_p < LEVEL, at_same, has_gap[one.base])
        for (one, _), (points, logarithm, gap, at_same), p, log_p, gap_p in zip(
            pairs, tests, *corrected[:3], strict=True
        )
    ]


def _tests(one: Contrast, at_same: Contrast, whole: bool) -> tuple[Any, ...]:
    """Return the interaction in points and in logarithms, the change of the gap at few, and that at the same step."""
    kept, both = one.kept | whole, (one.kept & at_same.kept) | whole
    values = (one.interaction[kept], one.logarithmic_interaction[kept], one.gap["few"][kept], at_same.interaction[both])
    return tuple(map(estimate, values))


@dataclass(frozen=True)
class Manipulation:
    """A base's mean gap on the images set aside, in points by gap, with the configurations that were chosen."""

    base: str
    gap: dict[str, float]

    @property
    def passes(self) -> bool:
        """Whether the factor changed the gap as much as the plan demands."""
        return self.gap["few"] - self.gap["many"] >= LEAST_GAP


def manipulation(results: Results) -> list[Manipulation]:
    """Return the check of every base."""
    return [
        Manipulation(base, {gap: 100 * _gap_set_aside(results, chosen(results, gap)[base], gap) for gap in GAPS})
        for base in results.plan.bases
    ]


def _gap_set_aside(results: Results, one: Configuration, gap: str) -> float:
    rows = _choosing_rows(results, one, gap)
    return float(np.mean([row["train_accuracy"] - row["accuracy_of_final_model"] for row in rows]))


def _choosing_rows(results: Results, one: Configuration, gap: str) -> list[Row]:
    """Return the runs of one configuration with the choosing seeds, by seed."""
    names = ("choose", "choose-further")
    rows = {row["seed"]: row for name in names for row in results.of(name, gap) if configuration_of(row) == one}
    return [rows[seed] for seed in results.plan.choosing_seeds]


def scores(results: Results, gap: str) -> Scores:
    """Return the accuracies from which was chosen. Raises ValueError before all of them are known."""
    found = results.plan.scores(results.runs, gap)
    if found is None:
        raise ValueError(f"not every configuration has been tried at {gap}")
    return found


def chosen(results: Results, gap: str, place: int = 0) -> dict[str, Configuration]:
    """Return the best configuration of every method, or for `place` 1 the second best."""
    known = scores(results, gap)
    return {method: ranked(known, method)[place] for method in results.plan.methods}


def leads_set_aside(results: Results, place: int) -> dict[str, dict[str, float]]:
    """Return the mean lead in points on the images set aside, by flat method and gap.

    place: 0 for the best configurations, 1 for the second best.
    """
    known = {gap: scores(results, gap) for gap in GAPS}
    at = {gap: chosen(results, gap, place) for gap in GAPS}
    return {
        flat: {gap: 100 * (known[gap][at[gap][flat]] - known[gap][at[gap][base]]) for gap in GAPS}
        for flat, base in results.plan.base_of.items()
    }


@dataclass(frozen=True)
class EqualGradients:
    """A lead at few, and what is left of it over the base with twice the rounds."""

    flat: str
    base: str
    lead: Estimate
    left: Estimate

    @property
    def vanishes(self) -> bool:
        """Whether there is a lead, its interval above 0, and none over the base with as many gradients."""
        return self.lead.low > 0 >= self.left.low


def equal_gradients(results: Results) -> list[EqualGradients]:
    """Return the control of the flat methods that take two gradients a step."""
    twice, found = results.arms("twice"), []
    for one in contrasts(results.compared, results.plan):
        if one.flat not in ONE_GRADIENT:
            flat, base = results.compared["few", one.flat], twice["few", one.base]
            lead, left = estimate(one.lead["few"]), estimate(100 * (flat.accuracy - base.accuracy))
            found += [EqualGradients(one.flat, one.base, lead, left)] if lead and left else []
    return found


def diverged(results: Results) -> dict[str, int]:
    """Return how many runs diverged, by part; parts without such runs are left out."""
    counts = dict.fromkeys((part.name for part in results.parts), 0)
    for part in results.parts:
        counts[part.name] += sum(row["diverged"] for row in part.ended(results.runs))
    return {name: number for name, number in counts.items() if number}


def with_gap(rows: Sequence[Row]) -> list[Row]:
    """Return the measured runs with their gap in points."""
    measured = [row for row in rows if not row["diverged"]]
    return [row | {"measured_gap": 100 * (row["train_accuracy"] - row["accuracy_of_final_model"])} for row in measured]


def correlation(rows: Sequence[Row], measure: str) -> Correlation | None:
    """Return Spearman's correlation of a measure with the gap over all methods and seeds of `rows`, of one gap.

    Methods that lack a seed of the others are left out. The bootstrap draws seeds, once for all methods, and methods.
    """
    seeds = sorted({row["seed"] for row in rows})
    by_method: dict[str, dict[int, Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], {})[row["seed"]] = row
    whole = [own for own in by_method.values() if len(own) == len(seeds)]
    if not whole:
        return None
    x, y = (np.array([[own[seed][name] for seed in seeds] for own in whole]) for name in (measure, "measured_gap"))
    drawn = draws(len(whole), "methods", DRAWS)[:, :, None], draws(len(seeds), "seeds", DRAWS)[:, None, :]
    resampled = spearman(x[drawn].reshape(DRAWS, -1), y[drawn].reshape(DRAWS, -1))
    return with_interval(float(spearman(x.reshape(1, -1), y.reshape(1, -1))[0]), resampled, len(whole))


def means_of(rows: Sequence[Row], columns: Sequence[str]) -> Mapping[str, float]:
    """Return the mean of each column over the runs that have it; NaN without any."""
    known = {name: [row[name] for row in rows if row[name] is not None] for name in columns}
    return {name: float(np.mean(values)) if values else float("nan") for name, values in known.items()}

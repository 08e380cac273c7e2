"""The analysis of studies/flat-or-tuned as its README planned it, from the parquet files of its results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from fedflat.data.sources import source
from fedflat.experiments.statistics import Difference, MeanEstimate, mean_estimate, paired_difference
from fedflat.experiments.tuning import Tried, Tuned
from fedflat.methods import find
from fedflat.metrics.flatness.measures.lpf import LPF
from fedflat.reports.catalogue import costs

from ..inference import LEVEL, Correlation, draws, holm, spearman, with_interval

BASES = {
    "FedSAM": "FedAvg", "FedASAM": "FedAvg", "FedLESAM": "FedAvg", "FedGF": "FedAvg", "MoFedSAM": "FedCM",
    "FedVSSAM": "FedCM", "FedSMOO": "FedDyn", "FedLESAM_D": "FedDyn", "FedGMT": "FedDyn",
}  # fmt: skip
MORE_THAN_A_RADIUS = ("FedGF", "FedVSSAM", "FedGMT")  # the flat methods that are not their base where rho = 0
METHODS = list(dict.fromkeys(name for flat, plain in BASES.items() for name in (plain, flat)))  # in tables and figures
# Columns of flatness by what they are called. LPF contains the training loss F, so its rise is what is shown.
MEASURES = {"lambda_max": "largest eigenvalue", "trace": "trace", "lpf_rise": "LPF - F"}
CORRELATED = MEASURES | {"lpf": "LPF, with the loss in it"}
SIGMA = LPF().sigma
MARGIN = 0.01  # of accuracy: leads below it count as none
CLASSES = source("cifar10").classes
TEST_SAMPLES = source("cifar10").sizes["test"]  # that accuracies are on
NEAR_CHANCE = 0.12  # accuracy with ten classes that is at most two points above that of a guess
HELD, BARELY, NOT_HELD, UNDECIDED = "held", "held, below a point", "not held", "undecided"
LEAST_SEEDS = 3  # of a rank correlation; two points are always in order
Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The tables that collect.py writes, as rows; those that are not there are empty."""

    runs: list[Row]
    curves: list[Row]
    tuning: list[Row]
    drift: list[Row]
    missing: list[Row] = field(default_factory=list)  # what of the plan has not finished

    @classmethod
    def load(cls, folder: Path) -> Results:
        """Return the tables in `folder`."""
        files = [folder / f"{table.name}.parquet" for table in fields(cls)]
        runs, *others = (pq.read_table(file).to_pylist() if file.exists() else [] for file in files)
        return cls([row | rise(row) for row in runs], *others)

    def of(self, part: str, split: str) -> list[Row]:
        """Return the runs of a part that have an accuracy, by method."""
        return in_order([row for row in _of(self.runs, part, split) if row["accuracy"] is not None])

    def curves_of(self, part: str, split: str) -> list[Row]:
        """Return the evaluations of a part's runs, by method."""
        return in_order(_of(self.curves, part, split))

    def have_ended(self, split: str, *parts: str) -> bool:
        """Tell whether nothing is missing of these parts of a split."""
        return not any(row["split"] == split and row["part"] in parts for row in self.missing)

    def splits(self, *parts: str) -> list[str]:
        """Return the splits of which there is a run of one of these parts, in order."""
        return sorted({row["split"] for row in self.runs if row["part"] in parts})


def rise(row: Row) -> Row:
    """Return LPF minus the training loss F.

    F is on all training images, LPF on at most 2,000, and only its error is known.
    """
    known = row["lpf"] is not None and row["train_loss"] is not None
    return {"lpf_rise": row["lpf"] - row["train_loss"] if known else None, "lpf_rise_error": row["lpf_error"]}


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with methods in the order of the plan, so that a seed that one of them lacks moves none."""
    return sorted(rows, key=lambda row: METHODS.index(row["method"]))


def _of(rows: Sequence[Row], part: str, split: str) -> list[Row]:
    return [row for row in rows if (row["part"], row["split"]) == (part, split)]


@dataclass(frozen=True)
class Contrast:
    """A flat method minus its plain base, paired by seed; accuracies in [0, 1]."""

    method: str
    base: str
    difference: Difference | None  # None without a pair
    p: float | None  # two-sided, of the paired t test; None with fewer than two pairs
    corrected: float | None  # by Holm's procedure

    @property
    def verdict(self) -> str:
        """What the plan calls the outcome."""
        return verdict(self.difference, self.corrected) if self.difference else UNDECIDED


def accuracies(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Return accuracy by method and seed."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["method"], {})[row["seed"]] = row["accuracy"]
    return found


def contrasts(flat: Sequence[Row], plain: Sequence[Row], methods: Sequence[str] = tuple(BASES)) -> list[Contrast]:
    """Return the contrasts of `methods` with their bases."""
    ours, theirs = accuracies(flat), accuracies(plain)
    return _contrasts_of({method: (ours.get(method, {}), theirs.get(BASES[method], {})) for method in methods})


def contrasts_at_same_settings(flat: Sequence[Row], plain: Sequence[Row]) -> list[Contrast]:
    """Return the contrasts of control 3: of each method with its base's runs that have the method's own step size.

    Raises ValueError if a base has runs with that step size and several coefficients: only one is the method's.
    """
    ours, pairs = accuracies(flat), {}
    for method in (one for one in BASES if one not in MORE_THAN_A_RADIUS):
        rates = {row["client.lr"] for row in flat if row["method"] == method}
        theirs = [row for row in plain if row["method"] == BASES[method] and row["client.lr"] in rates]
        if len({row["hyper_parameters"] for row in theirs}) > 1:
            raise ValueError(f"{BASES[method]} has several coefficients with the step size of {method}")
        pairs[method] = (ours.get(method, {}), accuracies(theirs).get(BASES[method], {}))
    return _contrasts_of(pairs)


def _contrasts_of(pairs: Mapping[str, tuple[dict[int, float], dict[int, float]]]) -> list[Contrast]:
    """Return the contrasts of pairs by method; Holm's correction is over all of them, also those without runs."""
    found = [paired_difference(*pair, TEST_SAMPLES) for pair in pairs.values()]
    p = [one and one.p for one in found]
    return [
        Contrast(method, BASES[method], difference, raw, corrected)
        for method, difference, raw, corrected in zip(pairs, found, p, holm(p), strict=True)
    ]


def twice_the_gradients() -> list[str]:
    """Return the flat methods that take two gradients a step."""
    return [method for method in BASES if costs(find(method))[-1] == 2]


def verdict(difference: Difference, corrected: float | None) -> str:
    """Return held, not held or undecided.

    A lead that is certain and certainly below the margin is both, and says so.
    """
    certain = corrected is not None and corrected < LEVEL
    small = difference.high is not None and difference.high < MARGIN
    if certain and difference.mean > 0:
        return BARELY if small else HELD
    return NOT_HELD if small or (certain and difference.mean < 0) else UNDECIDED


def searched(rows: Sequence[Row]) -> list[Tuned]:
    """Return the result of the search for every method of one split, from the steps that are complete."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    found = []
    for place, method in enumerate(methods):
        own = [row for row in rows if row["method"] == method]
        steps = sorted({row["rounds"] for row in own})
        ranked = [sorted(_tried(place, own, rounds), key=lambda one: (-one.score, one.number)) for rounds in steps]
        found.append(Tuned(method, tuple(map(tuple, ranked))))
    return found


def _tried(place: int, rows: Sequence[Row], rounds: int) -> list[Tried]:
    """Return the configurations of one method in one step."""
    here = [row for row in rows if row["rounds"] == rounds]
    found = []
    for number in dict.fromkeys(row["configuration"] for row in here):
        own = [row for row in here if row["configuration"] == number]
        curves: dict[int, list[tuple[int, float]]] = {}
        for row in own:
            if row["round"] is not None:
                curves.setdefault(row["seed"], []).append((row["round"], row["validation_accuracy"]))
        diverged = [row["seed"] for row in own if row["round"] is None]
        found.append(Tried(place, number, json.loads(own[0]["settings"]), rounds, curves, 0.0, diverged))
    return found


def ends(tuned: Tuned) -> dict[str, str]:
    """Return the keys in which the winner has an extreme of all values that were tried, with `least` or `most`."""
    found = {}
    for key, value in tuned.winner.values.items():
        tried = [one.values[key] for one in tuned.steps[0]]
        if min(tried) < max(tried) and value in (min(tried), max(tried)):
            found[key] = "least" if value == min(tried) else "most"
    return found


def by_method(rows: Sequence[Row], name: str) -> dict[str, MeanEstimate]:
    """Return mean and spread over seeds of one column, for every method that has it."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row[name] is not None:
            found.setdefault(row["method"], []).append(row[name])
    return {method: mean_estimate(values) for method, values in found.items()}


def diverged(tuned: Tuned) -> int:
    """Return how many configurations diverged, in whatever step."""
    return len({one.number for step in tuned.steps for one in step if one.diverged})


def near_chance(tuned: Tuned) -> int:
    """Return how many configurations did not diverge and were near chance after the first step, where most end."""
    return sum(one.score <= NEAR_CHANCE for one in tuned.steps[0] if not one.diverged)


def runs_near_chance(rows: Sequence[Row]) -> dict[str, int]:
    """Return how many runs of each method ended near chance."""
    found = dict.fromkeys((row["method"] for row in rows), 0)
    for row in rows:
        found[row["method"]] += row["accuracy"] <= NEAR_CHANCE
    return found


def within(rows: Sequence[Row], measure: str, accuracy: str = "accuracy") -> Correlation | None:
    """Return Spearman's correlation of a measure with accuracy over the seeds of a method, its mean over methods.

    accuracy: the column. Methods that lack a seed of the others, or without spread, have no correlation. All methods
    share the seeds, so that the bootstrap draws seeds and methods (Owen, Annals of Applied Statistics 2007, 386).
    """
    measured = [row for row in rows if row[measure] is not None]
    seeds = {row["seed"] for row in measured}
    by_name: dict[str, list[Row]] = {}
    for row in sorted(measured, key=lambda row: row["seed"]):
        by_name.setdefault(row["method"], []).append(row)
    whole = [own for own in by_name.values() if len(own) == len(seeds)]
    pairs = [tuple(np.array([row[name] for row in own]) for name in (measure, accuracy)) for own in whole]
    values = [float(spearman(x[None], y[None])[0]) for x, y in pairs]
    kept = [pair for pair, value in zip(pairs, values, strict=True) if np.isfinite(value)]
    if len(seeds) < LEAST_SEEDS or len(kept) < 2:
        return None
    return with_interval(float(np.nanmean(values)), _pigeonhole(kept, len(seeds)), len(kept))


def _pigeonhole(pairs: Sequence[tuple[np.ndarray, ...]], seeds: int) -> np.ndarray:
    """Return the mean correlation, (draws,), of drawn methods over seeds that are drawn once for all of them."""
    drawn = draws(seeds, "seeds")
    of_method = np.stack([spearman(x[drawn], y[drawn]) for x, y in pairs], axis=1)
    of_drawn = np.ma.masked_invalid(np.take_along_axis(of_method, draws(len(pairs), "methods"), axis=1))
    means: np.ndarray = of_drawn.mean(axis=1).filled(np.nan)
    return means


def between(rows: Sequence[Row], measure: str, accuracy: str = "accuracy") -> Correlation | None:
    """Return Spearman's correlation of the means of methods, over methods, which the bootstrap draws.

    `accuracy`: column.
    """
    measured = [row for row in rows if row[measure] is not None]
    means = [by_method(measured, name) for name in (measure, accuracy)]
    x, y = (np.array([one.mean for one in estimates.values()]) for estimates in means)
    if len(x) < LEAST_SEEDS:
        return None
    value = float(spearman(x[None], y[None])[0])
    drawn = draws(len(x), "methods")
    return with_interval(value, spearman(x[drawn], y[drawn]), len(x))

"""The data of a comparison of finished runs, from which tables, figures and pages are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, get_args
from typing import Protocol as Interface

import numpy as np

from ..core.errors import InputError
from ..data.types import Index
from ..experiments.recipe import Published
from ..experiments.statistics import Difference, MeanEstimate
from ..metrics.by_client import ClientScores
from ..metrics.flatness import Flatness
from ..metrics.protocols import SCORES, AccuracyCurve, Protocol, Reached, Score, score_name
from ..rounds.settings import fields_by_name

if TYPE_CHECKING:
    import pyarrow as pa


class FinishedRun(Interface):
    """The attributes of a run that a comparison reads; `fedflat.Run` and stored runs have them."""

    @property
    def method(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def metrics(self) -> pa.Table: ...
    @property
    def summary(self) -> dict[str, float]: ...
    @property
    def settings(self) -> dict[str, Any]: ...
    @property
    def counts(self) -> Index: ...
    @property
    def flatness(self) -> Flatness: ...
    @property
    def clients(self) -> ClientScores | None: ...


@dataclass(frozen=True)
class Target:
    """A target accuracy, or another score, and the cost of reaching it for each seed that reached it."""

    accuracy: float
    plain: tuple[Reached, ...]
    smoothed: tuple[Reached, ...]  # on the accuracy smoothed with a Hanning window

    def mean(self, name: str) -> float | None:
        """Return the mean over seeds of the field `name` of `Reached`; None if no seed reached the target.

        The name `rounds_smoothed` means the field `rounds` for the smoothed accuracy.
        """
        costs = self.smoothed if name == "rounds_smoothed" else self.plain
        return float(np.mean([getattr(cost, name.split("_", maxsplit=1)[0]) for cost in costs])) if costs else None


@dataclass(frozen=True)
class Row:
    """One method in a comparison, with one set of settings and any number of seeds."""

    label: str
    runs: Sequence[FinishedRun]
    estimates: dict[str, MeanEstimate]  # over seeds, of every number in the runs' summaries and flatness
    accuracy: MeanEstimate  # on the test set by the comparison's protocol, over seeds
    difference: Difference | None  # of accuracy, to the baseline; None for a baseline and for a row without one
    reached: Sequence[Target]  # for each of the comparison's targets
    # Label of the row that the difference refers to; for a baseline, its own label; None without a baseline.
    baseline: str | None
    settings: Mapping[str, Any]  # by name, see `run_settings`

    @property
    def task(self) -> dict[str, str]:
        """Data, model and number of rounds; accuracies are comparable only between rows that share them."""
        parts = ("data", "data_hash", "clients", "partition", "partition_hash", "model", "parameters", "rounds")
        return {name: str(value) for name, value in self.settings.items() if name.partition(".")[0] in parts}

    @property
    def is_baseline(self) -> bool:
        return self.baseline == self.label

    @property
    def score(self) -> Score:
        """What is compared."""
        return SCORES[score_of(self.runs[0])]

    @property
    def gain(self) -> Difference | None:
        """The difference, with the sign for which larger is better."""
        d = self.difference
        if d is None or self.score.larger_is_better:
            return d
        low, high = (None if end is None else -end for end in (d.high, d.low))
        return replace(d, mean=-d.mean, low=low, high=high)

    @property
    def hyper(self) -> dict[str, Any]:
        """The method's hyper-parameters."""
        return fields_by_name(self.runs[0].settings["method"])

    def numbers(self) -> dict[str, Any]:
        """Return all numbers of the row by column name."""
        values: dict[str, Any] = {"method": self.label, "baseline": self.baseline, "seeds": len(self.runs)}
        for name, value in self.estimates.items():
            values |= {name: value.mean, f"{name}_seed_std": value.std}
        parts = [(name, value.samples[0]) for run in self.runs for name, value in run.flatness.items() if value.samples]
        values |= {f"{name}_samples": min(n for other, n in parts if other == name) for name, _ in parts}
        d = self.difference
        values |= {"shown_accuracy": self.accuracy.mean}
        values |= {"difference": d and d.mean, "difference_low": d and d.low, "difference_high": d and d.high}
        for target in self.reached:
            goal = f"{target.accuracy:.4g}"
            values |= {f"rounds_to_{goal}": target.mean("rounds"), f"seeds_at_{goal}": len(target.plain)}
            for name in ("rounds_smoothed", "gradients", "bytes", "vectors"):
                values[f"{name}_to_{goal}"] = target.mean(name)
        return values


@dataclass(frozen=True)
class ComparisonData:
    """A comparison of methods; `rows` are in the order of the given runs."""

    rows: Sequence[Row]
    baseline: str  # label of the row that differences refer to; if there are several, the name of their method
    targets: Sequence[float]  # accuracies in [0, 1], or other scores, of the columns "rounds to"
    protocol: Protocol  # which accuracy is compared
    notes: Sequence[str]  # caveats for the reader
    published: Sequence[Published] = ()  # the numbers of a paper for the same experiment
    has_own_targets: bool = True  # whether a user gave `targets`; if not, the only one is the first baseline's accuracy

    @property
    def runs(self) -> list[FinishedRun]:
        return [run for row in self.rows for run in row.runs]

    @property
    def score(self) -> Score:
        """What is compared."""
        return SCORES[score_of(self.runs[0])]

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    def table(self) -> pa.Table:
        """Return the numbers, one row per method."""
        import pyarrow as pa  # here, because tables on a terminal and on a page need none

        rows = [row.numbers() for row in self.rows]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in names})


def by_task(rows: Sequence[Row]) -> list[list[Row]]:
    """Group the rows by task."""
    tasks: dict[str, list[Row]] = {}
    for row in rows:
        tasks.setdefault(str(row.task), []).append(row)
    return list(tasks.values())


def score_of(run: FinishedRun) -> str:
    """Return the name of the score of a run, which `SCORES` describes. Raises InputError for a run without one."""
    name = score_name(run.summary)
    if name is None:
        raise InputError(f"the run of {run.method}, seed {run.seed}, has no test accuracy: its data has no test set")
    return name


def accuracy(run: FinishedRun, protocol: Protocol) -> float:
    """Return the test accuracy of `run` by `protocol`, or in another task its score.

    Raises InputError for an unknown protocol, and for best-validation without validation samples.
    """
    score = score_of(run)
    names = {"last": score, "final": f"{score}_last", "best-validation": f"{score}_best_validation"}
    if protocol == "best-test":
        return curve_of(run).best_on_test
    if protocol not in names:
        raise InputError(f"protocol = {protocol!r} is unknown; known are {', '.join(get_args(Protocol))}")
    if names[protocol] not in run.summary:
        raise InputError(f"protocol = {protocol!r} needs validation samples; set data.validation")
    return run.summary[names[protocol]]


def test_samples(runs: Sequence[FinishedRun]) -> float:
    """Return the smallest number of test samples of `runs`; infinity if no summary states it, and for other scores.

    It limits the precision of accuracies, which are multiples of 1 / n, and not that of other scores.
    """
    if any(score_of(run) != "test_accuracy" for run in runs):
        return inf
    return min(run.summary.get("test_samples", inf) for run in runs)


def accuracy_in_words(protocol: Protocol, evaluations: int) -> str:
    """Describe the accuracy of `protocol`; "last" is the mean over the last `evaluations`."""
    return {
        "last": f"mean of the last {evaluations} evaluations" if evaluations > 1 else "of the last evaluation",
        "final": "of the final model",
        "best-validation": "of the round that did best on the clients' validation samples",
        "best-test": "BEST ON THE TEST SET: the best of the run, chosen on the test set and so too good",
    }[protocol]


def curve_of(run: FinishedRun) -> AccuracyCurve:
    """Return the test accuracy of a run by round. Raises InputError if no round was evaluated."""
    curve = AccuracyCurve.of(run.metrics.to_pylist(), run.summary["vector_bytes"])
    if not len(curve.rounds):
        raise InputError(f"the metrics of {run.method}, seed {run.seed}, have no test accuracy in any round")
    return curve

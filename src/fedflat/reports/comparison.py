"""Finished runs grouped by method and compared, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from typing import Protocol as Interface

import numpy as np
import pyarrow as pa

from ..core.errors import InputError
from ..engine.arguments import BF16
from ..experiments.recipe_files import Published
from ..experiments.statistics import Difference, MeanEstimate, mean_estimate, paired_difference
from ..methods import plain
from ..metrics.flatness import Flatness
from ..metrics.protocols import AccuracyCurve, Protocol, Reached


class FinishedRun(Interface):
    """What a comparison reads of a run; `fedflat.Run` and a stored run both have it."""

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
    def counts(self) -> np.ndarray: ...
    @property
    def flatness(self) -> Flatness: ...


@dataclass(frozen=True)
class Target:
    """What it took to reach an accuracy, for the seeds that did."""

    accuracy: float
    plain: tuple[Reached, ...]
    smoothed: tuple[Reached, ...]  # under the Hanning window

    @property
    def rounds(self) -> float | None:
        """Mean rounds of the seeds that reached it; None if none did."""
        return self.mean("rounds")

    def mean(self, name: str) -> float | None:
        """Mean of a field of Reached, or of `rounds_smoothed`, over the seeds that reached it; None if none did."""
        some = self.smoothed if name == "rounds_smoothed" else self.plain
        return float(np.mean([getattr(reached, name.split("_", maxsplit=1)[0]) for reached in some])) if some else None


@dataclass(frozen=True)
class Row:
    """One method in a comparison."""

    label: str
    runs: Sequence[FinishedRun]
    estimates: dict[str, MeanEstimate]  # of every number of the runs' summaries and flatness, over seeds
    accuracy: MeanEstimate  # on the test set by the comparison's protocol, over seeds
    difference: Difference | None  # of that accuracy to the baseline; None for the baseline itself
    reached: Sequence[Target]  # for each of the comparison's targets

    @property
    def hyper(self) -> dict[str, Any]:
        """The method's hyper-parameters."""
        hyper: dict[str, Any] = self.runs[0].settings["hyper"]
        return hyper


@dataclass(frozen=True)
class Comparison:
    """Methods side by side; `rows` is in the order of the runs given."""

    rows: Sequence[Row]
    baseline: str  # label of the row that differences refer to
    targets: Sequence[float]  # accuracies in [0, 1] of the columns "rounds to"
    protocol: Protocol  # which accuracy is compared
    notes: Sequence[str]  # what a reader must know before trusting the comparison
    published: Sequence[Published] = ()  # what a paper prints for the same experiment

    @property
    def runs(self) -> list[FinishedRun]:
        return [run for row in self.rows for run in row.runs]

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    def accuracy_of(self, run: FinishedRun) -> float:
        """The test accuracy of one run by the comparison's protocol."""
        return accuracy(run, self.protocol)

    def table(self) -> pa.Table:
        """The numbers, one row per method."""
        rows = [_flat(row) for row in self.rows]
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page; returns its path."""
        from .page import Chapter, write_page

        return write_page([Chapter(self)], Path(path))

    def __str__(self) -> str:
        from .terminal import as_text  # here, because it imports this module

        return as_text(self)


def compare(
    runs: Sequence[FinishedRun],
    baseline: str | None = None,
    targets: Sequence[float] = (),
    protocol: Protocol = "last",
    published: Sequence[Published] = (),
) -> Comparison:
    """Compare finished runs by method; differences are paired by seed.

    `baseline` is a method, by default FedAvg, or the first one if FedAvg has no run. `targets` are
    accuracies in (0, 1) whose first round is reported; by default the baseline's own accuracy.
    `protocol` says which accuracy of a run counts: "last" (mean of the last evaluations), "final",
    "best-validation" (of the round that did best on validation samples) or "best-test" (chosen on the
    test set, so too good). `published` numbers of a paper stand beside ours. Raises ValueError without
    runs, for two runs of one method and seed, a baseline that has no run, a target out of range, or a
    run without the accuracy asked for.
    """
    if not isinstance(runs, Sequence) or not runs:
        raise InputError("compare needs a list of at least one finished run")
    for target in targets:
        if not 0 < target < 1:
            raise InputError(f"targets: {target} is not an accuracy in (0, 1)")
    for run in runs:
        if "test_accuracy" not in run.summary:
            raise InputError(
                f"the run of {run.method}, seed {run.seed}, has no test accuracy: its data has no test set"
            )
    groups = _grouped(runs)
    reference = _reference(groups, baseline)
    goals = tuple(targets) or (mean_estimate([accuracy(run, protocol) for run in groups[reference]]).mean,)
    rows = [_row(label, group, groups[reference], goals, protocol) for label, group in groups.items()]
    return Comparison(rows, reference, goals, protocol, [*_notes(runs), *_unpaired(groups, reference)], published)


def accuracy(run: FinishedRun, protocol: Protocol) -> float:
    """The test accuracy of `run` by `protocol`. Raises InputError for best-validation without validation samples."""
    names = {"last": "test_accuracy", "final": "test_accuracy_last", "best-validation": "test_accuracy_best_validation"}
    if protocol == "best-test":
        return curve_of(run).best_on_test
    if protocol not in names:
        raise InputError(f"protocol = {protocol!r} is unknown; known are {', '.join(get_args(Protocol))}")
    if names[protocol] not in run.summary:
        raise InputError(f"protocol = {protocol!r} needs validation samples; set data.validation")
    return run.summary[names[protocol]]


def curve_of(run: FinishedRun) -> AccuracyCurve:
    """The evaluated rounds of a run. Raises InputError if there is none."""
    curve = AccuracyCurve.of(run.metrics.to_pylist(), run.summary["vector_bytes"])
    if not len(curve.rounds):
        raise InputError(f"the metrics of {run.method}, seed {run.seed}, have no test accuracy in any round")
    return curve


def _reference(groups: dict[str, list[FinishedRun]], baseline: str | None) -> str:
    """The label of the baseline: the first group of the method that was asked for."""
    wanted = plain(baseline or "FedAvg")
    found = [label for label, group in groups.items() if wanted in (plain(label), plain(group[0].method))]
    if not found and baseline is not None:
        raise InputError(f"baseline = {baseline!r} has no run; there are runs of {', '.join(groups)}")
    return found[0] if found else next(iter(groups))


def _row(
    label: str, runs: list[FinishedRun], reference: list[FinishedRun], goals: Sequence[float], protocol: Protocol
) -> Row:
    numbers = [run.summary | {name: measured.value for name, measured in run.flatness.items()} for run in runs]
    names = [name for name in numbers[0] if all(name in some for some in numbers)]
    ours, theirs = ({run.seed: accuracy(run, protocol) for run in some} for some in (runs, reference))
    curves = [curve_of(run) for run in runs]
    return Row(
        label=label,
        runs=runs,
        estimates={name: mean_estimate([some[name] for some in numbers]) for name in names},
        accuracy=mean_estimate(list(ours.values())),
        difference=None if runs is reference else paired_difference(ours, theirs),
        reached=[_target(goal, curves) for goal in goals],
    )


def _target(goal: float, curves: Sequence[AccuracyCurve]) -> Target:
    plain, smoothed = ([curve.reached(goal, smooth) for curve in curves] for smooth in (False, True))
    return Target(goal, *(tuple(found for found in some if found is not None) for some in (plain, smoothed)))


def _grouped(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs by label: the method's name, and its hyper-parameters where a method appears with several."""
    variants: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        known = variants.setdefault(run.method, [])
        if run.settings["hyper"] not in known:
            known.append(run.settings["hyper"])
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        group = groups.setdefault(_label(run, variants[run.method]), [])
        for other in group:
            if other.seed == run.seed:
                raise InputError(f"two runs of {run.method} have seed {run.seed}{_what_differs(run, other)}")
        group.append(run)
    return groups


def _what_differs(one: FinishedRun, other: FinishedRun) -> str:
    differing = [key for key, value in one.settings.items() if other.settings.get(key) != value]
    return f"; they differ in {', '.join(differing)}" if differing else ""


def _label(run: FinishedRun, variants: list[dict[str, Any]]) -> str:
    hyper = run.settings["hyper"]
    varying = [name for name in hyper if any(other.get(name) != hyper[name] for other in variants)]
    values = ", ".join(f"{name}={hyper[name]}" for name in varying)
    return f"{run.method}({values})" if values else run.method


PAIRED_BY = (
    "partition_hash",
    "data",
    "data_hash",
    "augmentation",
    "model",
    "model_hash",
    "batches",
    "participation",
    "weights",
    "precision",
)


def _notes(runs: Sequence[FinishedRun]) -> list[str]:
    """Where runs of one seed differ in more than the method, so that they are not paired."""
    notes = []
    for key in PAIRED_BY:
        for seed in sorted({run.seed for run in runs}):
            values = sorted({str(run.settings.get(key, "fp32")) for run in runs if run.seed == seed})
            if len(values) > 1:
                notes.append(f"Not paired: with seed {seed}, {key} differs between runs ({'; '.join(values)}).")
    own = {run.settings["client"]: run.method for run in runs}
    if len(own) > 1:
        notes.append(f"Local training has settings of their own for some methods: see {', '.join(own.values())} below.")
    if any(run.settings.get("precision") == "bf16" for run in runs):
        notes.append(f"{BF16.capitalize()}.")
    if len({run.summary["rounds"] for run in runs}) > 1:
        notes.append("Runs have different numbers of rounds.")
    return notes


def _unpaired(groups: dict[str, list[FinishedRun]], reference: str) -> list[str]:
    """Methods that lack some of the baseline's seeds, or have others."""
    seeds = {label: {run.seed for run in group} for label, group in groups.items()}
    return [
        f"Not paired: {label} has seeds {sorted(mine)}, {reference} has {sorted(seeds[reference])}."
        for label, mine in seeds.items()
        if mine != seeds[reference]
    ]


def _flat(row: Row) -> dict[str, Any]:
    """A row as plain columns."""
    flat: dict[str, Any] = {"method": row.label, "seeds": len(row.runs)}
    for name, value in row.estimates.items():
        flat |= {name: value.mean, f"{name}_seed_std": value.std}
    d = row.difference
    flat |= {"shown_accuracy": row.accuracy.mean}
    flat |= {"difference": d and d.mean, "difference_low": d and d.low, "difference_high": d and d.high}
    for target in row.reached:
        goal = f"{target.accuracy:.4g}"
        flat |= {f"rounds_to_{goal}": target.rounds, f"seeds_at_{goal}": len(target.plain)}
        for name in ("rounds_smoothed", "gradients", "bytes", "vectors"):
            flat[f"{name}_to_{goal}"] = target.mean(name)
    return flat

"""Finished runs grouped by method and compared, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..engine.arguments import BF16
from ..experiments.recipe_files import Published
from ..experiments.statistics import mean_estimate, paired_difference
from ..methods import plain
from ..metrics.protocols import Protocol
from .comparison_data import ComparisonData, FinishedRun, Row, Target, accuracy, curve_of

# Runs of one seed are paired only if they share these settings; otherwise not only their methods differ.
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


class Comparison(ComparisonData):
    """Methods side by side: print it, write it as a page, or take its numbers as a table."""

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page; returns its path. Raises InputError if it cannot be written."""
        from .page import Chapter, write_page  # here, because figures need matplotlib

        return write_page([Chapter(self)], Path(path))

    def __str__(self) -> str:
        from .terminal import as_text  # here, because only this needs rich

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
    test set, so too good). `published` numbers of a paper are shown next to ours. Raises ValueError without
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
                f"the run of {run.method}, seed {run.seed}, has no test accuracy: its data has no test set, or it is a "
                "regression"
            )
    groups = _grouped(runs)
    reference = _reference(groups, baseline)
    goals = tuple(targets) or (mean_estimate([accuracy(run, protocol) for run in groups[reference]]).mean,)
    rows = [_row(label, group, groups[reference], goals, protocol) for label, group in groups.items()]
    return Comparison(rows, reference, goals, protocol, _notes(runs, groups, reference), published)


def _grouped(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs by label: the method's name, and its hyper-parameters where a method appears with several."""
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        variants = [other.settings["hyper"] for other in runs if other.method == run.method]
        group = groups.setdefault(_label(run, variants), [])
        for other in group:
            if other.seed == run.seed:
                differing = [key for key, value in run.settings.items() if other.settings.get(key) != value]
                text = f"; they differ in {', '.join(differing)}" if differing else ""
                raise InputError(f"two runs of {run.method} have seed {run.seed}{text}")
        group.append(run)
    return groups


def _label(run: FinishedRun, variants: list[dict[str, Any]]) -> str:
    """The method's name, with the hyper-parameters in which its variants differ."""
    hyper = run.settings["hyper"]
    varying = [name for name in hyper if any(other.get(name) != hyper[name] for other in variants)]
    values = ", ".join(f"{name}={hyper[name]}" for name in varying)
    return f"{run.method}({values})" if values else run.method


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
    """The row of one method; `reference` are the baseline's runs."""
    numbers = [run.summary | {name: measured.value for name, measured in run.flatness.items()} for run in runs]
    names = [name for name in numbers[0] if all(name in some for some in numbers)]
    ours, theirs = ({run.seed: accuracy(run, protocol) for run in some} for some in (runs, reference))
    curves, reached = [curve_of(run) for run in runs], []
    for goal in goals:
        plain, smoothed = ([curve.reached(goal, smooth) for curve in curves] for smooth in (False, True))
        reached.append(Target(goal, *(tuple(one for one in some if one is not None) for some in (plain, smoothed))))
    return Row(
        label=label,
        runs=runs,
        estimates={name: mean_estimate([some[name] for some in numbers]) for name in names},
        accuracy=mean_estimate(list(ours.values())),
        difference=None if runs is reference else paired_difference(ours, theirs),
        reached=reached,
    )


def _notes(runs: Sequence[FinishedRun], groups: dict[str, list[FinishedRun]], reference: str) -> list[str]:
    """What a reader must know: in what runs of one seed differ besides the method, and which seeds are not paired."""
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
    seeds = {label: {run.seed for run in group} for label, group in groups.items()}
    for label, own_seeds in seeds.items():
        if own_seeds != seeds[reference]:
            text = f"{label} has seeds {sorted(own_seeds)}, {reference} has {sorted(seeds[reference])}"
            notes.append(f"Not paired: {text}.")
    return notes

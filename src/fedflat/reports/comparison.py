"""Finished runs compared, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import InputError
from ..core.plain_numbers import plain_numbers
from ..experiments.recipe import Published
from ..experiments.statistics import mean_estimate, paired_difference
from ..metrics.protocols import Protocol
from . import export
from .comparison_data import ComparisonData, FinishedRun, Row, Target, accuracy, curve_of, test_samples
from .pairing import Group, grouped, notes, paired

if TYPE_CHECKING:
    import pandas as pd


class Comparison(ComparisonData):
    """Methods side by side: print it, write it as a page or a file, or take its numbers as a table."""

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page; returns its path. Raises InputError if it cannot be written."""
        from .page import Chapter, write_page  # here, because figures need matplotlib

        return write_page([Chapter(self)], Path(path))

    def to_pandas(self) -> pd.DataFrame:
        """The numbers, one row per method, as a DataFrame. Raises InputError if pandas is not installed."""
        return export.data_frame(self)

    def to_csv(self, path: str | Path | None = None) -> str | Path:
        """The numbers, to all digits, as CSV: the text, or with a `path` the file that it was written to."""
        return export.csv_text(self) if path is None else export.write_csv(self, Path(path))

    def to_latex(self, columns: Sequence[str] | None = None) -> str:
        """Write the table as a LaTeX `tabular` (package booktabs); the best is bold where its interval excludes zero.

        columns: titles of those besides the method, such as `["test accuracy %"]`; default all but rounds to a target
        that nobody asked for. Raises InputError for an unknown one.
        """
        return export.latex_table(self, columns)

    def _repr_html_(self) -> str:
        """The table, for a notebook."""
        return export.html_table(self)

    def __repr__(self) -> str:
        methods, seeds = len(self.rows), ", ".join(map(str, self.seeds))
        return f"<Comparison of {methods} {'row' if methods == 1 else 'rows'} with {self.baseline}, seeds {seeds}>"

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
    """Compare finished runs; differences are paired by seed.

    Runs may differ in anything: the method and its fields, local training, partition, model, rounds, participation.
    Runs that differ only in the seed make one row, and a row is called by its method and whatever differs among the
    runs, such as `FedSAM(rho=0.1, alpha=0.5)`.

    A difference is taken only between runs that share partition, model, initial weights, loss, cohorts and batches.
    So each row is compared with the run of the baseline method that has the same other settings: in a sweep over alpha,
    rho and lr, `FedSAM(rho=0.1, alpha=0.5, lr=0.05)` with `FedAvg(alpha=0.5, lr=0.05)`. If the baseline has no run with
    the same lr, the first one with the same partition serves; if it has none with the same partition, there is no
    difference.

    `baseline` is a method, by default FedAvg, or the first one if FedAvg has no run; or the label of one row.
    `targets` are accuracies in (0, 1) whose first round is reported; by default the first baseline's own accuracy.
    `protocol` says which accuracy of a run counts: "last" (mean of the last evaluations), "final", "best-validation"
    (of the round that did best on validation samples) or "best-test" (chosen on the test set, so too good).
    `published` numbers of a paper are shown next to ours.

    Raises ValueError without runs, for two runs with the same settings and seed, a baseline that has no run, a target
    out of range, or a run without the accuracy asked for.
    """
    if not isinstance(runs, Sequence) or not runs:
        raise InputError("compare needs a list of at least one finished run")
    targets = plain_numbers(list(targets))
    for target in targets:
        if not (isinstance(target, int | float) and 0 < target < 1):
            raise InputError(f"targets: {target} is not an accuracy in (0, 1)")
    for run in runs:
        if not hasattr(run, "summary"):
            raise InputError(f"compare takes finished runs, of `Simulation.run` or `fedflat.load_run`, got {run!r}")
        if "test_accuracy" not in run.summary:
            raise InputError(
                f"the run of {run.method}, seed {run.seed}, has no test accuracy: its data has no test set, or it is a "
                "regression"
            )
    groups = grouped(runs)
    pairs = paired(groups, baseline)
    used = [one for one in pairs if one is not None]
    goals = tuple(targets) or (mean_estimate([accuracy(run, protocol) for run in used[0].runs]).mean,)
    rows = [_row(group, reference, goals, protocol) for group, reference in zip(groups, pairs, strict=True)]
    name = used[0].label if len({one.label for one in used}) == 1 else used[0].runs[0].method
    return Comparison(rows, name, goals, protocol, notes(groups, pairs, name, protocol), published, bool(targets))


def _row(group: Group, reference: Group | None, goals: Sequence[float], protocol: Protocol) -> Row:
    """The row of one group of runs; `reference` are the baseline's."""
    runs = group.runs
    both = [*runs, *(reference.runs if reference else ())]
    numbers = [run.summary | {name: measured.value for name, measured in run.flatness.items()} for run in runs]
    names = [name for name in numbers[0] if all(name in some for some in numbers)]
    ours, theirs = (
        {run.seed: accuracy(run, protocol) for run in some} for some in (runs, reference.runs if reference else ())
    )
    curves, reached = [curve_of(run) for run in runs], []
    for goal in goals:
        plain, smoothed = ([curve.reached(goal, smooth) for curve in curves] for smooth in (False, True))
        reached.append(Target(goal, *(tuple(one for one in some if one is not None) for some in (plain, smoothed))))
    return Row(
        label=group.label,
        runs=runs,
        estimates={name: mean_estimate([some[name] for some in numbers]) for name in names},
        accuracy=mean_estimate(list(ours.values())),
        difference=None if reference is group else paired_difference(ours, theirs, test_samples(both)),
        reached=reached,
        baseline=reference.label if reference else None,
        settings=group.settings,
    )

"""What a cell of a recipe gives for the ledger of reproductions."""

from __future__ import annotations

from collections.abc import Sequence

from ..experiments.recipe import Cell, Published
from ..experiments.reproductions import LedgerEntry, changed_settings, check_commits
from ..experiments.run_directory import StoredRun
from ..experiments.spec import RunSpec, StudySpec
from .comparison_data import ComparisonData, Row
from .published import ACCURACY, text_for
from .text_table import NOTHING


def entries_of(cell: Cell, study: StudySpec, unchanged: StudySpec, comparison: ComparisonData) -> list[LedgerEntry]:
    """Return an entry for each row of a cell's comparison.

    unchanged: the study at the same share of the rounds as the recipe has it, without flags.

    Raises InputError if a run's rounds were computed by code without a commit.
    """
    planned = {run.method.label: run for run in unchanged.runs()}
    return [_entry(cell, study.seeds, planned, row) for row in comparison.rows]


def _entry(cell: Cell, seeds: Sequence[int], planned: dict[str, RunSpec], row: Row) -> LedgerEntry:
    runs = [run for run in row.runs if isinstance(run, StoredRun)]
    done = sorted(run.seed for run in runs)
    spec, commits = runs[0].spec, [commit for run in runs for commit in run.directory.commits()]
    theirs = planned.get(spec.method.label)
    return LedgerEntry(
        recipe=cell.recipe.name,
        cell=cell.name,
        method=row.label,
        paper=paper_number(row, cell.published),
        ours=round(100 * row.accuracy.mean, 4),
        spread=None if row.accuracy.std is None else round(100 * row.accuracy.std, 4),
        seeds=done,
        missing=sorted({*seeds} - {*done}),
        rounds=spec.rounds,
        rounds_of_paper=cell.study().rounds,
        changed=["methods"] if theirs is None else changed_settings(spec, theirs),
        commits=check_commits(commits, f"{cell.name}, {row.label}"),
    )


def paper_number(row: Row, published: Sequence[Published]) -> str | None:
    """Return the first test accuracy that the paper prints for the method of `row`; None if there is none."""
    texts = (text_for(row, numbers) for numbers in published if numbers.quantity == ACCURACY)
    return next((text for text in texts if text != NOTHING), None)

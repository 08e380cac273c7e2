"""What a study will cost, as a table and as lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from ..experiments.study_plan import PlannedRun, seconds_of
from .text_table import text_table

CAPTION = (
    "time: of what is left, one run after another; disk: at most. Runs that have begun count whole. Of runs longer "
    "than a second it is the time of gradients and evaluations, without measures of flatness and checkpoints"
)


def plan_table(runs: Sequence[PlannedRun]) -> Table:
    """One line for each method, and one for all of them."""
    groups = {"all": list(runs)}
    for run in runs:
        groups.setdefault(run.spec.method.label, []).append(run)
    titles = ("method", "runs", "finished", "gradients", "MB sent", "time left", "MB on disk")
    rows = [_row(name, group) for name, group in groups.items()]
    return text_table(titles, [*rows[1:], rows[0]], ("method",), caption=CAPTION)


def _row(name: str, runs: Sequence[PlannedRun]) -> tuple[str, ...]:
    numbers = (len(runs), sum(run.finished for run in runs), sum(run.budget.gradients for run in runs))
    sent = sum(run.budget.bytes_down + run.budget.bytes_up for run in runs)
    disk = sum(run.disk_bytes for run in runs)
    shown = (f"{sent / 1e6:,.1f}", duration(seconds_of(runs)), f"{disk / 1e6:,.1f}")
    return (name, *(f"{number:,.0f}" for number in numbers), *shown)


def plan_lines(runs: Sequence[PlannedRun], folder: Path, jobs: int) -> list[str]:
    """All runs together, so many `jobs` at a time, and from what their cost was found."""
    finished, begun = (sum(run.finished for run in runs), sum(run.directory.has_begun for run in runs))
    seeds = sorted({run.spec.seed for run in runs})
    shown = ", ".join(map(str, seeds)) if len(seeds) <= 10 else f"{len(seeds)} from {seeds[0]} to {seeds[-1]}"
    trials = {id(run.trial): run.trial for run in runs}.values()
    peaks = [trial.peak_bytes for trial in trials if trial.peak_bytes is not None]
    at_once = "one run at a time" if jobs == 1 else f"{jobs} runs at a time, as if none slowed another"
    return [
        f"runs    {len(runs):,}, of which {finished:,} are finished and {begun - finished:,} have begun; seeds {shown}",
        f"folder  {folder}",
        f"time    about {duration(seconds_of(runs, jobs))} for the {len(runs) - finished:,} that are left, {at_once}",
        *([f"memory  about {jobs * max(peaks) / 1e6:,.0f} MB"] if peaks else []),
        f"tried   {', '.join(trial.title for trial in trials)}; the other runs are extrapolated from these",
    ]


def duration(seconds: float) -> str:
    """A time in the unit that fits."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"

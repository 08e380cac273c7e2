"""Contents and costs of recipes, studies and partitions before anything is trained, as tables and lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from ..core.errors import InputError, MissingPackageError
from ..data.federated import FederatedData
from ..data.partition_statistics import partition_statistics
from ..data.types import Index
from ..experiments.budget import Budget, budget_of_runs, speed_of, total
from ..experiments.recipe import Cell, Recipe
from ..experiments.spec import StudySpec
from ..experiments.study_plan import PlannedRun, seconds_of
from ..files import make_folder, write_text
from .published import line_of
from .text_table import NOTHING, text_table

CAPTION = (
    "time: of the runs that are left, one after another, each from its start; disk: at most. For runs longer than a "
    "second, the time of gradients and evaluations, without measures of flatness and checkpoints"
)
SHADES = " ░▒▓█"  # from no samples to the most


def recipe_row(recipe: Recipe, measure: bool) -> list[str]:
    """Return the row of a recipe in `listing.recipe_table`.

    Hours are given only if this machine's speed is known for every model; with `measure`, unknown speeds are measured.
    """
    cells = recipe.cells()
    costs = [_cost(recipe, cell.study(), measure) for cell in cells]
    work = [estimate for estimate, _ in costs if estimate is not None]
    hours = [time for _, time in costs if time is not None]
    return recipe_texts(recipe, total(work) if work else None, sum(hours) if len(hours) == len(cells) else None)


def recipe_texts(recipe: Recipe, work: Budget | None, hours: float | None) -> list[str]:
    """Return the row of a recipe in `listing.recipe_table`, given its cost; None means an unknown cost."""
    return [recipe.name, ", ".join(recipe.item.items), str(len(recipe.cells())), *_cost_texts(work, hours)]


def cell_table(recipe: Recipe, cells: Mapping[Cell, StudySpec], measure: bool) -> Table:
    """Return a table with one line per cell: the rounds of its study and its cost; `measure` as for `recipe_row`."""
    titles = ("cell", "rounds", "runs", "gradients", "GB sent", "hours here")
    rows = [
        (cell.name, f"{study.rounds:,}", *_cost_texts(*_cost(recipe, study, measure))) for cell, study in cells.items()
    ]
    return text_table(titles, rows, ("cell",), unbroken=("cell",))


def recipe_lines(recipe: Recipe, cells: Iterable[Cell]) -> list[str]:
    """Describe a recipe in lines, with the numbers that its paper prints for `cells`."""
    base = recipe.base
    first = [f"{recipe.name}: {recipe.item.title}", f"{base.title} ({base.paper}): {', '.join(recipe.item.items)}"]
    options = [set(cell.options) for cell in cells]
    blocks = recipe.published.blocks if recipe.published else []  # of one of the cells, or of a mean over several
    printed = [line_of(numbers) for numbers in blocks if any(set(numbers.cell) <= of_cell for of_cell in options)]
    return [*first, *details(recipe), *(f"note: {note}" for note in base.notes), *printed]


def details(recipe: Recipe) -> list[str]:
    """Return the methods and notes of a recipe as lines, without the notes on all recipes of its paper."""
    methods = [f"methods: {', '.join(recipe.item.use)}"] if recipe.item.use else []
    return methods + [f"note: {note}" for note in recipe.item.notes]


def _cost(recipe: Recipe, study: StudySpec, measure: bool) -> tuple[Budget | None, float | None]:
    """Return the work of a cell, and its hours on this machine; None for an unknown value.

    The hours are unknown if a package that the model needs is not installed. Both values are unknown if the model's
    files are absent.
    """
    if recipe.item.kind == "partition":
        return None, None
    runs = study.runs()
    try:
        work = budget_of_runs(runs)
    except InputError:  # its model needs files or a package that are not here
        return None, None
    try:
        speed = speed_of(runs[0], measure=measure)
    except MissingPackageError:
        speed = None
    return work, None if speed is None else speed.seconds(work) / 3600


def _cost_texts(work: Budget | None, hours: float | None) -> list[str]:
    """Return the texts of a row in the columns from "runs" to "hours here"."""
    if work is None:  # nothing is trained, or the model's files are not on this machine
        return [NOTHING] * 4
    spent = NOTHING if hours is None else f"{hours:,.1f}" if hours >= 0.1 else "< 0.1"
    return [str(work.runs), _three_digits(work.gradients), f"{work.bytes / 1e9:,.1f}", spent]


def _three_digits(number: float) -> str:
    """Format a number as three digits and a unit."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def plan_table(runs: Sequence[PlannedRun]) -> Table:
    """Return the cost of a study as a table: a line per method, then one for all methods."""
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
    """Describe the cost of all runs, `jobs` at a time, and name the trial runs from which it is extrapolated."""
    finished, begun = (sum(run.finished for run in runs), sum(run.directory.has_begun for run in runs))
    seeds = sorted({run.spec.seed for run in runs})
    shown = ", ".join(map(str, seeds)) if len(seeds) <= 10 else f"{len(seeds)} from {seeds[0]} to {seeds[-1]}"
    trials = {id(run.trial): run.trial for run in runs}.values()
    peaks = [trial.peak_bytes for trial in trials if trial.peak_bytes is not None]
    at_once = "one run at a time" if jobs == 1 else f"{jobs} runs at a time, as if none slowed another"
    return [
        f"runs    {len(runs):,}: {finished:,} finished, {begun - finished:,} begun; seeds {shown}",
        f"folder  {folder}",
        f"time    about {duration(seconds_of(runs, jobs))} for the {len(runs) - finished:,} that are left, {at_once}",
        *([f"memory  about {jobs * max(peaks) / 1e6:,.0f} MB"] if peaks else []),
        f"tried   {', '.join(trial.title for trial in trials)}; the other runs are extrapolated from these",
    ]


def duration(seconds: float) -> str:
    """Format a time in days, hours, minutes or seconds."""
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"


def split_lines(data: FederatedData) -> list[str]:
    """Describe a partitioned data set in lines: name, partition, hash and statistics."""
    return [f"{data.name}, {data.partition}, hash {data.partition_hash()}", *partition_statistics(data).lines()]


def shade_map(counts: Index, width: int) -> list[str]:
    """Return a map of samples as lines: a row per class, a column per client, darker for more samples.

    counts: (clients, classes). width: characters of a line; clients that do not fit in a line are left out.
    """
    shown = counts[: max(1, width - 10)]
    levels = np.ceil(shown / max(1, shown.max()) * (len(SHADES) - 1)).astype(int)
    rows = [f"class {c:>2}  " + "".join(SHADES[level] for level in column) for c, column in enumerate(levels.T)]
    left_out = f" (first {len(shown)} of {len(counts)})" if len(shown) < len(counts) else ""
    return [*rows, f"clients from left to right{left_out}; █ is {shown.max()} samples"]


def write_partition_map(data: FederatedData, path: Path) -> Path:
    """Write the heat map of a partition as SVG. Raises InputError if the file cannot be written."""
    from .figures import partition_map  # here, because drawing needs matplotlib

    svg = partition_map(data.counts(), f"{data.name}, {data.partition}")
    write_text(path, svg)
    return path


def write_partition(data: FederatedData, lines: list[str], folder: Path) -> Path:
    """Write `lines` to facts.txt and the heat map to partition.svg in `folder`; returns the path of the map."""
    make_folder(folder)
    write_text(folder / "facts.txt", "\n".join([*lines, ""]))
    return write_partition_map(data, folder / "partition.svg")

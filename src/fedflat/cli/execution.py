"""Carries out runs, studies and recipes: prepares data, trains with a progress bar, writes tables and files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from ..core.object_references import check_allowed
from ..data import prepare
from ..data.dataset import LoadedDataset
from ..data.schema import Schema
from ..engine.problem import BF16
from ..engine.ranks import Ranks
from ..experiments import runner, studies
from ..experiments.jobs import Jobs
from ..experiments.recipe import Cell, Recipe
from ..experiments.run_directory import RunDirectory, StoredRun
from ..experiments.runner import together
from ..experiments.spec import Experiment, RunSpec, StudySpec
from ..experiments.studies import ONE, extend_run, extend_study, with_rounds
from ..experiments.tracking import TrackingObserver
from ..files import write_atomically, write_text
from ..metrics.protocols import long_mean
from .console import Console
from .progress import watcher

if TYPE_CHECKING:
    from ..reports.comparison_data import ComparisonData
    from ..reports.page import Chapter


def prepare_set(
    console: Console, name: str, data_dir: str | None, hub: bool = False, revision: str | None = None, **options: Any
) -> LoadedDataset:
    """Call `prepare`; show a progress bar if the files of the set have to be converted first."""
    with console.bars(f"{name} ", counted=True) as progress:
        return prepare(name, data_dir, hub, revision, progress, **options)


def prepare_data(console: Console, spec: Experiment) -> LoadedDataset:
    """Convert the data set of an experiment before its first round; print what was left out of it."""
    data = spec.data
    loaded = prepare_set(
        console, data.name, spec.data_dir, partial=data.partial, image_size=data.image_size,
        text_length=data.text_length, tokenizer=spec.tokenizer, **Schema.of(data).stated,
    )  # fmt: skip
    console.say(*loaded.notes)
    return loaded


def warn_of_doubtful_settings(console: Console, spec: Experiment) -> None:
    """Print a warning for each setting that may make the results doubtful."""
    if spec.precision == "bf16":
        console.caution("precision = 'bf16':", BF16)
    evaluations = -(-spec.rounds // spec.eval_every)
    doubt = long_mean(min(spec.last, evaluations), evaluations)
    if doubt and (not isinstance(spec, StudySpec) or spec.protocol == "last"):
        console.caution(f"last = {spec.last}:", doubt)


def carry_out_run(
    console: Console, spec: RunSpec, path: Path, ranks: Ranks, strict: bool = False, track: Sequence[str] = ()
) -> None:
    """Carry out the remaining rounds of a run in the folder `path`, as the only process or as one of several ranks.

    track: names of the tracking tools that every round is also written to.
    """
    tracking = TrackingObserver(track, path, lambda _: RunDirectory(path))
    with watcher(console, [spec]) as watching, tracking:
        runner.run(spec, path, together(watching, tracking), strict, ranks)
    console.say(f"results in {path}")


def resume_run(
    console: Console,
    path: Path,
    rounds: int | None,
    ranks: Ranks,
    strict: bool = False,
    track: Sequence[str] = (),
) -> None:
    """Resume the run in `path`, or extend it to `rounds` rounds, as the only process or as one of several ranks."""
    directory = RunDirectory(path)
    if rounds is not None:
        with ranks.together():
            spec = extend_run(directory, rounds, strict) if ranks.index == 0 else directory.spec()
        return carry_out_run(console, with_rounds(spec, rounds), path, ranks, strict, track)
    spec = directory.spec()
    if not track and ranks.first(directory.is_finished and not directory.damaged_files()):
        directory.remove_temporary_files()
        done = int(StoredRun.open(path).summary["rounds"])
        more = "" if spec.planned_by_rounds() else "; --rounds N extends it"
        return console.say(f"already finished: {done} of {spec.rounds} rounds{more}", f"results in {path}")
    carry_out_run(console, spec, path, ranks, strict, track)


def resume_study(
    console: Console,
    path: Path,
    rounds: int | None,
    jobs: Jobs = ONE,
    strict: bool = False,
    track: Sequence[str] = (),
) -> None:
    """Resume the study in `path`, or extend it to `rounds` rounds.

    Raises InputError, before training, if the study names code of the user and the caller does not allow code.
    """
    for name in studies.load_study(path).outside_names():
        check_allowed(name)
    if rounds is not None:
        return carry_out_study(console, extend_study(path, rounds, strict), path, jobs, strict, track)
    spec = studies.load_study(path)
    directories = [directory for _, directory in studies.runs_of(spec, path)]
    if all(directory.is_finished and not directory.damaged_files() for directory in directories):
        console.say(f"already finished: {len(directories)} runs of {spec.rounds} rounds; --rounds N extends them")
    carry_out_study(console, spec, path, jobs, strict, track)


def carry_out_study(
    console: Console, spec: StudySpec, path: Path, jobs: Jobs = ONE, strict: bool = False, track: Sequence[str] = ()
) -> None:
    """Carry out the remaining runs of a study, then show and write the comparison.

    track: names of the tracking tools that every round is also written to. This process writes to them, even if `jobs`
    demands other processes for the runs.
    """
    from ..reports.comparison import compare
    from ..reports.page import Chapter

    prepare_data(console, spec)
    warn_of_doubtful_settings(console, spec)
    tracking = TrackingObserver(track, path, lambda one: studies.run_directory(one, path))
    with watcher(console, spec.runs(), spec.protocol) as watching, tracking:
        studies.carry_out_study(spec, path, together(watching, tracking), jobs, strict)
    runs, _ = studies.runs_in_folder(spec, path)
    show(console, [Chapter(compare(runs, targets=spec.targets, protocol=spec.protocol))], path)


def show_cost(console: Console, spec: RunSpec) -> None:
    """Print the expected cost of a run, without training it."""
    from ..experiments.budget import simulation_budget
    from ..experiments.study_plan import trial_cost
    from ..reports.plans import duration

    with closing(spec.build()) as sim:
        budget = simulation_budget(sim)
        seconds = trial_cost(spec, sim).speed.seconds(budget)
    console.say(*budget.lines(), f"time                  about {duration(seconds)}, without measures and checkpoints")


def show_plan(console: Console, spec: StudySpec, path: Path, jobs: Jobs) -> None:
    """Print the expected cost of the runs that a study still needs in the folder `path`; write nothing."""
    from ..experiments.study_plan import study_plan
    from ..reports.plans import plan_lines, plan_table

    prepare_data(console, spec)
    warn_of_doubtful_settings(console, spec)
    with console.doing("taking trial steps"):
        plan = study_plan(spec, path)
    console.show(plan_table(plan))
    console.say(*plan_lines(plan, path, jobs.count(spec.device, len(plan))))


@dataclass(frozen=True)
class RecipeRun:
    """Cells of a recipe that are carried out, and where their results go."""

    recipe: Recipe
    cells: dict[Cell, StudySpec]
    unchanged: dict[Cell, StudySpec]  # as the recipe has them, without flags
    folder: Path
    changes: Sequence[str]  # notes for the page
    ledger: Path | None


def carry_out_recipe(console: Console, run: RecipeRun, jobs: Jobs) -> None:
    """Carry out every cell of a recipe; print a table for each, write one page, and add to the ledger if there is one.

    The ledger is written before the page, which takes longer.
    """
    from ..reports.comparison import compare
    from ..reports.page import Chapter

    recipe = run.recipe
    planned = [each for study in run.cells.values() for each in study.runs()]
    with watcher(console, planned) as watching:
        specs = {run.folder / cell.name: study for cell, study in run.cells.items()}
        results = studies.carry_out_studies(specs, watching, jobs)
    chapters = {
        cell: Chapter(
            compare(runs, targets=study.targets, protocol=study.protocol, published=cell.published),
            f"{recipe.name} {cell.name}",
            _notes_of(cell, run.changes),
        )
        for (cell, study), runs in zip(run.cells.items(), results, strict=True)
    }
    if run.ledger is not None:
        _record(console, run, run.ledger, {cell: chapter.comparison for cell, chapter in chapters.items()})
    title = f"{recipe.item.title} ({recipe.base.paper}: {', '.join(recipe.item.items)})"
    show(console, list(chapters.values()), run.folder, title)


def _notes_of(cell: Cell, changes: Sequence[str]) -> list[str]:
    """Return what a reader of a cell's results has to know."""
    missing = [] if cell.published else ["No published numbers of this cell are recorded."]
    warnings = [f"{one.where}, {one.quantity}: {one.warning}." for one in cell.published if one.warning]
    return [*changes, *missing, *warnings, *cell.recipe.item.notes, *cell.recipe.base.notes]


def _record(console: Console, run: RecipeRun, ledger: Path, comparisons: Mapping[Cell, ComparisonData]) -> None:
    """Add the results of every cell to the ledger, and say which are not reproductions."""
    from ..experiments.reproductions import record
    from ..reports.reproductions import entries_of

    entries = [
        entry
        for cell, comparison in comparisons.items()
        for entry in entries_of(cell, run.cells[cell], run.unchanged[cell], comparison)
    ]
    record(ledger, entries)
    for one in entries:
        why = f"not a reproduction: {one.why_none}" if one.why_none else "a reproduction at full protocol"
        console.say(f"recorded in {ledger}: {one.cell}, {one.method}: {why}")


def show(console: Console, chapters: Sequence[Chapter], folder: Path, title: str | None = None) -> None:
    """Print the comparisons; write report.html, and the table of each comparison as parquet and JSON, to `folder`.

    The page of a single comparison also shows the pictures that `fedflat landscape` wrote to `folder`.
    """
    from ..reports.page import write_page  # here, because pages need matplotlib and a run does not
    from ..reports.tables import tables

    if len(chapters) == 1:
        chapters = [replace(chapters[0], surfaces=sorted((folder / "landscape").glob("*.svg")))]
    page = write_page(chapters, folder / "report.html", title)
    for number, chapter in enumerate(chapters, start=1):
        suffix = "" if len(chapters) == 1 else f"-{number}"
        table = chapter.comparison.table()
        write_atomically(folder / f"comparison{suffix}.parquet", partial(pq.write_table, table))
        text = json.dumps(table.to_pylist(), indent=2) + "\n"
        write_text(folder / f"comparison{suffix}.json", text)
        if chapter.title:
            console.say(chapter.title, style="bold")
        console.show(*tables(chapter.comparison))
        console.say(*chapter.notes, *chapter.comparison.notes)
    console.say(f"report: {page}")

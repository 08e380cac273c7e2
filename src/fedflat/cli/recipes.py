"""`fedflat recipes`: the papers' tables and figures as experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..data.partition_statistics import partition_statistics
from ..experiments import studies
from ..experiments.budget import Budget, speed_of, study_budget, total
from ..experiments.recipe import Cell, Recipe, all_recipes, find_recipe
from ..experiments.spec import StudySpec, federated_data
from ..experiments.studies import Jobs
from ..files import make_folder, write_atomically
from ..reports.comparison import compare
from ..reports.partition import shade_map, write_partition_map
from ..reports.recipes import cell_table, description, hours, overview
from .console import Console
from .conversion import convert_for
from .flags import CONTEXT, override
from .jobs import JobsFlag, jobs_of
from .outcome import show
from .progress import watcher

app = typer.Typer(
    help="Every table and figure of the papers as an experiment: list them, look at one, run it.",
    no_args_is_help=True,
)
DataDir = Annotated[str | None, typer.Option(help="Folder with the data sets; default $FEDFLAT_DATA.")]
CellName = Annotated[str | None, typer.Option(help="Only cells with these options, e.g. cifar10,alpha-0.")]
Calibrate = Annotated[bool, typer.Option("--calibrate", help="Measure 20 steps of every model not yet measured here.")]


@app.command("list")
def list_recipes(
    paper: Annotated[str | None, typer.Argument(help="Only the recipes of one paper, e.g. fedgf.")] = None,
    calibrate: Calibrate = False,
) -> None:
    """All recipes with what they cover and cost; nothing is run.

    Hours appear once a model has been measured on this device: by --calibrate, or by running or showing a recipe.
    """
    papers = {recipe.paper for recipe in all_recipes().values()}
    if paper is not None and paper not in papers:
        raise InputError(f"there is no paper {paper!r}; known are {', '.join(sorted(papers))}")
    recipes = [recipe for recipe in all_recipes().values() if paper in (None, recipe.paper)]
    console = Console()
    with console.doing("estimating"):
        rows = [_row(recipe, calibrate) for recipe in recipes]
    console.show(overview(rows))


@app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(help="A recipe, e.g. fedgf/table1.")],
    cell: CellName = None,
    calibrate: Calibrate = False,
) -> None:
    """One recipe: what it covers, notes, the paper's numbers, and its cells with their cost."""
    console, recipe = Console(), find_recipe(name)
    console.say(*description(recipe))
    cells = {each: each.study() for each in recipe.cells(cell)}
    console.show(cell_table(_costs(recipe, cells, calibrate)))


@app.command("run", context_settings=CONTEXT, options_metavar="[OPTIONS] [--KEY VALUE]...")
def run_recipe(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A recipe, e.g. fedsmoo/table1.")],
    cell: CellName = None,
    scale: Annotated[float, typer.Option(help="Fraction of the paper's rounds; 1 is the full protocol.")] = 1.0,
    only: Annotated[str | None, typer.Option(help="Only these of its methods, e.g. FedAvg,FedSMOO.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default runs/recipes/NAME.")] = None,
    data_dir: DataDir = None,
    jobs: JobsFlag = "1",
    dry_run: Annotated[bool, typer.Option(help="Print cells and cost, from 20 measured steps; train nothing.")] = False,
) -> None:
    """Run the cells of a recipe, and print our numbers beside the paper's.

    fedflat recipes run fedsmoo/table1 --cell cifar10,dirichlet-0.1 --scale 0.02 --data-dir DATA

    Dotted flags change any setting, e.g. `--seeds 0 --device cuda --data.partial true`. Finished runs are
    never computed again, so a recipe that was stopped goes on when it is started again.
    """
    if not 0 < scale <= 1:
        raise InputError(f"--scale {scale} is not in (0, 1]")
    if only and any(word.startswith("--methods") for word in context.args):
        raise InputError("--only takes some of the recipe's methods and --methods replaces them: give one of the two")
    console, recipe = Console(), find_recipe(name)
    labels = [label.strip() for label in only.split(",")] if only else None
    cells = {each: override(each.study(scale, data_dir, labels), context.args) for each in recipe.cells(cell)}
    console.say(*description(recipe))
    if not dry_run:
        for study in cells.values():
            convert_for(console, study)  # first, so that missing data is told before anything is measured
    with console.doing("measuring 20 steps"):
        costs = _costs(recipe, cells, calibrate=True)
    if recipe.item.kind != "partition":
        console.show(cell_table(costs))
    if dry_run:
        return
    folder = out or Path("runs") / "recipes" / (name if scale == 1 else f"{name}-scale-{scale:g}")
    if recipe.item.kind == "partition":
        return _show_partitions(console, cells, folder)
    _carry_out(console, recipe, cells, folder, _changes(scale, context.args), jobs_of(jobs))


def _carry_out(
    console: Console, recipe: Recipe, cells: dict[Cell, StudySpec], folder: Path, changes: list[str], jobs: Jobs
) -> None:
    """Run every cell; a table for each, and one page for all."""
    rounds = sum(study.rounds * len(study.methods) * len(study.seeds) for study in cells.values())
    results = []
    with watcher(console, rounds) as watching:
        for cell, study in cells.items():
            results.append(studies.study(study, folder / cell.name, watching, jobs))
    chapters = []
    for (cell, study), runs in zip(cells.items(), results, strict=True):
        comparison = compare(runs, targets=study.targets, protocol=study.protocol, published=cell.published)
        chapters.append((comparison, f"{recipe.name} {cell.name}", [*changes, *_reservations(cell)]))
    show(console, chapters, folder, f"{recipe.item.title} ({recipe.base.paper}: {', '.join(recipe.item.items)})")


def _changes(scale: float, flags: list[str]) -> list[str]:
    """In what a run is not the paper's by the user's own choice."""
    notes = [] if scale == 1 else [f"Ran {scale:.3g} of the paper's rounds: its numbers are no yardstick for this."]
    return notes + ([f"Changed by flags, so not the paper's setting: {' '.join(flags)}"] if flags else [])


def _reservations(cell: Cell) -> list[str]:
    """What a reader must know of a cell before comparing with the paper."""
    item, notes = cell.recipe.item, []
    if not cell.published:
        notes.append("The paper's numbers for this cell are not recorded in the recipe.")
    return [*notes, *item.notes]


def _show_partitions(console: Console, cells: dict[Cell, StudySpec], folder: Path) -> None:
    """Facts and heat map of every cell's split."""
    for cell, study in cells.items():
        data = federated_data(study.runs()[0])
        make_folder(folder / cell.name)
        title = f"{cell.name}: {data.name}, {data.partition}, hash {data.partition_hash()}"
        lines = [title, *partition_statistics(data).lines(), ""]
        write_atomically(folder / cell.name / "facts.txt", lambda path, lines=lines: path.write_text("\n".join(lines)))
        drawn = write_partition_map(data, folder / cell.name / "partition.svg")
        console.say(*lines[:-1])
        if len(cells) == 1:
            console.say(*shade_map(data.counts(), console.width))
        console.say(f"heat map: {drawn}")


def _row(recipe: Recipe, calibrate: bool) -> tuple[Recipe, int, Budget | None, float | None]:
    cells = recipe.cells()
    costs = [_cost(recipe, cell.study(), calibrate) for cell in cells]
    work = [estimate for estimate, _ in costs if estimate is not None]
    spent = [each for _, each in costs if each is not None]
    return recipe, len(cells), total(work) if work else None, sum(spent) if len(spent) == len(cells) else None


def _costs(
    recipe: Recipe, cells: dict[Cell, StudySpec], calibrate: bool
) -> dict[Cell, tuple[StudySpec, Budget | None, float | None]]:
    return {cell: (study, *_cost(recipe, study, calibrate)) for cell, study in cells.items()}


def _cost(recipe: Recipe, study: StudySpec, calibrate: bool) -> tuple[Budget | None, float | None]:
    """The work of a cell, and its hours here if the speed is known or to be measured."""
    if recipe.item.kind == "partition":
        return None, None
    work = study_budget(study)
    return work, hours(work, speed_of(study.runs()[0], measure=calibrate))

"""`fedflat recipes`: tables and figures of papers as experiments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import InputError
from ..core.object_references import allow_code
from ..reports.listing import paper_names, recipe_names, recipe_rows, recipe_table
from .console import Console
from .flag_names import SettingsCommand, check_flags
from .run import JobsOption, JobsPerGpuOption, parse_jobs

if TYPE_CHECKING:
    from ..experiments.recipe import Cell
    from ..experiments.spec import StudySpec

app = typer.Typer(
    help="Run the tables and figures of papers as experiments: list them, show one, run it.",
    no_args_is_help=True,
)
RecipeArgument = Annotated[str, typer.Argument(help="A recipe, e.g. fedgf/table1.", autocompletion=recipe_names)]
CellOption = Annotated[str | None, typer.Option(help="Only cells with these options, e.g. cifar10,alpha-0.")]
CalibrateOption = Annotated[
    bool,
    typer.Option("--calibrate", help="Measure 20 steps of every model not yet measured on this machine."),
]


@app.command("list")
def list_recipes(
    paper: Annotated[
        str | None,
        typer.Argument(help="Only the recipes of one paper, e.g. fedgf.", autocompletion=paper_names),
    ] = None,
    calibrate: CalibrateOption = False,
) -> None:
    """List all recipes with their contents and cost; nothing is run.

    Hours are shown for models that were measured on this device: by --calibrate, or by running or showing a recipe.
    """
    console = Console()
    with console.doing("estimating"):
        rows = recipe_rows(paper, calibrate)
    console.show(recipe_table(rows))


@app.command("show")
def show_recipe(name: RecipeArgument, cell: CellOption = None, calibrate: CalibrateOption = False) -> None:
    """Show one recipe: its contents, notes, the paper's results, and its cells with their cost."""
    from ..experiments.recipe import find_recipe
    from ..reports.plans import cell_table, recipe_lines

    console, recipe = Console(), find_recipe(name)
    cells = {each: each.study() for each in recipe.cells(cell)}
    console.say(*recipe_lines(recipe, cells))
    console.show(cell_table(recipe, cells, calibrate))


@app.command("run", cls=SettingsCommand, options_metavar="[OPTIONS] [--KEY VALUE]...")
def run_recipe(
    context: typer.Context,
    name: RecipeArgument,
    cell: CellOption = None,
    scale: Annotated[float, typer.Option(help="Fraction of the paper's rounds; 1 is the full number.")] = 1.0,
    only: Annotated[str | None, typer.Option(help="Only these methods of the recipe, e.g. FedAvg,FedSMOO.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; default runs/recipes/NAME.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets; default $FEDFLAT_DATA.")] = None,
    jobs: JobsOption = "1",
    jobs_per_gpu: JobsPerGpuOption = 1,
    dry_run: Annotated[bool, typer.Option(help="Print cells and cost, from 20 measured steps; train nothing.")] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Add the results to this ledger (JSON), beside the paper's; only from code with a commit."),
    ] = None,
) -> None:
    """Run the cells of a recipe, and print their results beside the paper's.

    fedflat recipes run fedsmoo/table1 --cell cifar10,dirichlet-0.1 --scale 0.02 --data-dir DATA

    Dotted flags change any setting, e.g. `--seeds 0 --device cuda --data.partial true`. Finished runs are
    never computed again, so the same command resumes a stopped recipe.
    """
    check_flags(context.args, "study")
    from ..experiments.recipe import check_model_files, find_recipe
    from ..experiments.reproductions import check_ledger
    from ..reports.plans import cell_table, recipe_lines
    from .execution import RecipeRun, carry_out_recipe, prepare_data
    from .flags import override

    if not 0 < scale <= 1:
        raise InputError(f"--scale {scale} is not in (0, 1]")
    if only and any(word.startswith("--methods") for word in context.args):
        raise InputError("--only takes some of the recipe's methods and --methods replaces them: give one of the two")
    console, recipe = Console(), find_recipe(name)
    if record is not None:
        if recipe.item.kind == "partition":
            raise InputError(f"--record {record}: {name} trains nothing, so there is no result to record")
        check_ledger(record)
    labels = [label.strip() for label in only.split(",")] if only else None
    context.with_resource(allow_code())  # the user's own flags may name code; recipes name none
    unchanged = {each: each.study(scale, data_dir, labels) for each in recipe.cells(cell)}
    cells = {each: override(study, context.args) for each, study in unchanged.items()}
    console.say(*recipe_lines(recipe, cells))
    for study in cells.values():
        check_model_files(study)
    if not dry_run:
        for study in cells.values():
            prepare_data(console, study)  # before measuring, so that missing data is an early error
    folder = out or Path("runs") / "recipes" / (name if scale == 1 else f"{name}-scale-{scale}")
    if recipe.item.kind == "partition":
        return None if dry_run else _show_partitions(console, cells, folder)
    with console.doing("measuring 20 steps"):
        table = cell_table(recipe, cells, measure=True)
    console.show(table)
    if not dry_run:
        run = RecipeRun(recipe, cells, unchanged, folder, _changes(scale, context.args), record)
        carry_out_recipe(console, run, parse_jobs(jobs, jobs_per_gpu))


def _changes(scale: float, flags: list[str]) -> list[str]:
    """Return notes that the page shows: a reduced number of rounds, and flags that differ from the recipe."""
    notes = [] if scale == 1 else [f"Ran {scale:.3g} of the paper's rounds: its numbers cannot be compared with these."]
    return notes + ([f"Settings of the recipe changed by flags: {' '.join(flags)}"] if flags else [])


def _show_partitions(console: Console, cells: dict[Cell, StudySpec], folder: Path) -> None:
    """Print and write the statistics and the heat map of every cell's split."""
    from ..experiments.spec import federated_data
    from ..reports.plans import shade_map, split_lines, write_partition

    for cell, study in cells.items():
        data = federated_data(study.runs()[0])
        first, *others = split_lines(data)
        lines = [f"{cell.name}: {first}", *others]
        drawn = write_partition(data, lines, folder / cell.name)
        console.say(*lines)
        if len(cells) == 1:
            console.say(*shade_map(data.counts(), console.width))
        console.say(f"heat map: {drawn}")

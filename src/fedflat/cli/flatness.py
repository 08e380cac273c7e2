"""`fedflat flatness`: how flat finished runs ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.progress import Progress, TaskID
from rich.table import Table

from ..core.errors import InputError
from ..experiments.config_errors import shortened
from ..experiments.measuring import build_measures, measure_run, run_directories
from ..metrics.flatness import Flatness, ProgressCallback, all_measures
from ..metrics.flatness.subject import MAX_SAMPLES
from ..reports.literal import literal
from .console import Console, usual_columns


def register(app: typer.Typer) -> None:
    app.command("flatness")(flatness)


def flatness(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs or studies; each run's newest checkpoint.")] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option("--measure", help="A measure's name, or a table; may repeat. Default: eigenvalues, sharpness."),
    ] = None,
    max_samples: Annotated[int, typer.Option(min=1, help="Training samples the loss is taken on.")] = MAX_SAMPLES,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets; default $FEDFLAT_DATA.")] = None,
    known: Annotated[bool, typer.Option("--list", help="List the measures with their settings.")] = False,
) -> None:
    """Measure how flat runs ended, each measure with its protocol and its error.

    fedflat flatness runs/digits --measure eigenvalues --measure trace --measure '{"name": "sharpness", "rho": 0.1}'

    All runs are measured on the same samples. Results are kept in each run's flatness.json as soon as they are
    there, and appear in `fedflat report`.
    """
    console = Console()
    if known:
        return console.show(measure_table())
    if not runs:
        raise InputError("give the folder of a run or a study, or --list")
    chosen = build_measures([_parsed(text) for text in measures or ()])
    found: dict[str, Flatness] = {}
    for directory in run_directories(runs):
        with Progress(*usual_columns(), console=console, transient=True) as bar:
            told = _teller(bar, directory.path.name)
            found[directory.path.name] = measure_run(directory, chosen, max_samples, data_dir, told)
    console.show(result_table(found))
    for protocol in dict.fromkeys(one.protocol for each in found.values() for one in each.findings):
        console.say(protocol, style="dim")


def measure_table() -> Table:
    """Every measure with its settings and their defaults."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("measure", "settings", "what it is"):
        table.add_column(title)
    for name, cls in all_measures().items():
        settings = ", ".join(f"{f.name} = {f.default}" for f in cls.__dataclass_fields__.values())
        table.add_row(*map(literal, (name, settings, (cls.__doc__ or "").strip().splitlines()[0])))
    return table


def result_table(found: dict[str, Flatness]) -> Table:
    """One row per run, one column per number."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, caption="± half of a 95 % interval, or the residual of an eigenvalue"
    )
    names = dict.fromkeys(name for each in found.values() for name in each)
    for title in ("run", *names):
        table.add_column(literal(title), justify="left" if title == "run" else "right", no_wrap=True)
    for run, each in found.items():
        table.add_row(literal(run), *(literal(str(each[name]) if name in each else "–") for name in names))
    return table


def _parsed(text: str) -> object:
    """A name as it is, a table as the table that it spells."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"--measure {shortened(text)}: {reason}") from error


def _teller(bar: Progress, run: str) -> ProgressCallback:
    """Shows each measure of a run as a bar of its own."""
    tasks: dict[str, TaskID] = {}

    def tell(name: str, done: int, total: int) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(f"{run}  {name}", total=total)
        bar.update(tasks[name], completed=done, total=total)

    return tell

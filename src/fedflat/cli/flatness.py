"""`fedflat flatness`: how flat the models of finished runs are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from ..core.errors import InputError, shortened
from .console import Console, bar_for_each, usual_columns
from .options import MAX_SAMPLES


def flatness(
    runs: Annotated[list[Path] | None, typer.Argument(help="Runs or studies; each run's newest checkpoint.")] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option("--measure", help="A measure's name, or a table; may repeat. Default: eigenvalues, sharpness."),
    ] = None,
    max_samples: Annotated[int, typer.Option(min=1, help="Training samples the loss is taken on.")] = MAX_SAMPLES,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets; default $FEDFLAT_DATA.")] = None,
    show_measures: Annotated[bool, typer.Option("--list", help="List the measures with their settings.")] = False,
) -> None:
    """Measure how flat runs ended, each measure with its protocol and its error.

    fedflat flatness runs/digits --measure eigenvalues --measure trace --measure '{"name": "sharpness", "rho": 0.1}'

    All runs are measured on the same samples. Results are kept in each run's flatness.json as soon as they are
    there, and appear in `fedflat report`.
    """
    from ..metrics.flatness import Flatness, all_measures
    from ..reports.catalogue import measure_overview

    console = Console()
    if show_measures:
        return console.show(measure_overview(all_measures()))
    if not runs:
        raise InputError("give the folder of a run or a study, or --list")

    from ..experiments.measuring import build_measures, measure_run, run_directories
    from ..reports.terminal import flatness_table

    chosen = build_measures([_parsed(text) for text in measures or ()])
    found: dict[str, Flatness] = {}
    for directory in run_directories(runs):
        with Progress(*usual_columns(), console=console, transient=True) as bar:
            name = directory.path.name
            found[name] = measure_run(directory, chosen, max_samples, data_dir, bar_for_each(bar, f"{name}  "))
    console.show(flatness_table(found))
    for protocol in dict.fromkeys(one.protocol for each in found.values() for one in each.findings):
        console.say(protocol, style="dim")


def _parsed(text: str) -> object:
    """The value of --measure: a measure's name as it is, or the table that a JSON text spells."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise InputError(f"--measure {shortened(text)}: {reason}") from error

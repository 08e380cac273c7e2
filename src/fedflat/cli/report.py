"""`fedflat report`: table and page from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..experiments.directory import StoredRun
from ..experiments.runner import stored_study
from .outcome import show_comparison


def register(app: typer.Typer) -> None:
    app.command("report")(report)


def report(
    folders: Annotated[list[Path], typer.Argument(help="One study, or any number of finished runs.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; default the study's, or the current one.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Accuracy in (0, 1) for the column 'rounds to'.")] = None,
) -> None:
    """Make the comparison table and page again from what is on disk; nothing is trained."""
    console = Console()
    if len(folders) == 1 and (folders[0] / "study.toml").exists():
        spec, runs = stored_study(folders[0])
        missing = len(spec.runs()) - len(runs)
        if missing:
            console.print(f"{missing} of {len(spec.runs())} runs are not finished and not shown", highlight=False)
        return show_comparison(console, runs, spec.target if target is None else target, out or folders[0])
    show_comparison(console, [StoredRun.open(folder) for folder in folders], target, out or Path())

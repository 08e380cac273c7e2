"""`fedflat verify`: what is whole, what is damaged, and what can be had back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..core.errors import InputError, printable
from ..experiments.verification import Verdict, verify_run, verify_study


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def verify(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="A run, a study, a federation's folder, or a cache of data.")
    ],
) -> None:
    """Check every file of a folder against its SHA-256, and say what is damaged and what can be had back.

    Nothing is written. The exit code is 0 if all is whole, 1 if something is damaged, and 2 for a folder that is not
    ours.

    fedflat verify runs/digits
    """
    console = Console(soft_wrap=True, highlight=False, markup=False)
    damaged = 0
    for folder in folders:
        for verdict in verdicts(folder):
            damaged += bool(verdict.problem)
            console.print(printable(line(verdict)), style="red" if verdict.problem else None)
    console.print("all is whole" if not damaged else f"{damaged} damaged")
    if damaged:
        raise typer.Exit(code=1)


def verdicts(folder: Path) -> Iterable[Verdict]:
    """What is found of a folder. Raises InputError for one that is none of ours."""
    if (folder / "study.toml").exists():
        return verify_study(folder)
    if (folder / "config.toml").exists() or (folder / "checkpoint").is_dir():
        return verify_run(folder)
    raise InputError(f"{folder} holds neither a run, a study, a federation nor a cache of data sets")


def line(verdict: Verdict) -> str:
    """A verdict for people."""
    if not verdict.problem:
        return f"whole    {verdict.path}" + (f"  ({verdict.note})" if verdict.note else "")
    return f"damaged  {verdict.path}: {verdict.problem}" + (f"; {verdict.remedy}" if verdict.remedy else "")

"""`fedflat verify`: which files are whole, which are damaged, and what can be recovered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import InputError
from .console import Console

if TYPE_CHECKING:
    from ..experiments.verification import Verdict


def verify(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="A run, a study, a federation's folder, or a cache of sets.")
    ],
) -> None:
    """Check every file of a folder against its SHA-256, and say what is damaged and what can be had back.

    Nothing is written. The exit code is 0 if all is whole, 1 if something is damaged, and 2 for a folder that is not
    ours.

    fedflat verify runs/digits
    """
    console, damaged = Console(), 0
    for folder in folders:
        for verdict in verdicts(folder):
            if verdict.problem:
                damaged += 1
                remedy = f"; {verdict.remedy}" if verdict.remedy else ""
                console.say(f"damaged  {verdict.path}: {verdict.problem}{remedy}", style="red")
            else:
                console.say(f"whole    {verdict.path}" + (f"  ({verdict.note})" if verdict.note else ""))
    console.say(f"{damaged} damaged" if damaged else "all is whole")
    if damaged:
        raise typer.Exit(code=1)


def verdicts(folder: Path) -> Iterator[Verdict]:
    """The files of a folder, each with its problem if it has one. Raises InputError for a folder that is not ours."""
    from ..data import cache
    from ..experiments.verification import Verdict, verify_run, verify_study
    from ..federation.flower import directory as federation

    if (folder / "study.toml").exists():
        yield from verify_study(folder)
    elif (folder / federation.STUDY).exists():
        again = "the server makes it again from the newest whole state when it goes on"
        older = "an older state is gone on from, if one is whole; `fedflat flower rollback` goes back to a chosen one"
        for name, problem in federation.check(folder):
            remedy = older if name.startswith("checkpoint/") else again if name == federation.METRICS else ""
            yield Verdict(folder / name, problem, remedy if problem else "")
    elif (folder / "config.toml").exists() or (folder / "checkpoint").is_dir():
        yield from verify_run(folder)
    elif any(folder.glob(f"*/{cache.DESCRIPTION}")) or folder.resolve() == cache.cache_folder().resolve():
        for name, problem in cache.check(folder):
            yield Verdict(folder / name, problem, "it is converted again when it is needed" if problem else "")
    else:
        raise InputError(f"{folder} holds neither a run, a study, a federation nor a cache of data sets")

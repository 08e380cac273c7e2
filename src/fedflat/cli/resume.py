"""`fedflat resume`: go on with what was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..engine.ranks import joined, speaks
from ..experiments.run_directory import RunDirectory
from ..experiments.spec import StudySpec
from . import run
from .compare import carry_out
from .console import Console
from .jobs import JobsFlag, StrictFlag, jobs_of


def register(app: typer.Typer) -> None:
    app.command("resume")(resume)


def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of a study.")],
    jobs: JobsFlag = "1",
    strict: StrictFlag = False,
) -> None:
    """Go on with a run or a study that was stopped, from its newest whole checkpoint.

    The rounds that follow are bit-identical to those of an uninterrupted run. Results of a finished run that are
    damaged, see `fedflat verify`, are made again.
    """
    console = Console(quiet=not speaks())
    if (folder / "study.toml").exists():
        return carry_out(console, StudySpec.load(folder / "study.toml"), folder, jobs_of(jobs), strict)
    if not (folder / "config.toml").exists():
        raise InputError(f"{folder} holds neither a run (config.toml) nor a study (study.toml)")
    spec = RunDirectory(folder).spec()
    with joined() as ranks:
        run.carry_out(console, spec, folder, ranks, strict)

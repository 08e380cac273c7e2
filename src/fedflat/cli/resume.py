"""`fedflat resume`: go on with a run or a study that was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..experiments.change_warnings import is_first_rank
from .console import Console
from .options import JobsOption, StrictOption, number_of_jobs


def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of a study.")],
    jobs: JobsOption = "1",
    strict: StrictOption = False,
) -> None:
    """Go on with a run or a study that was stopped, from its newest whole checkpoint.

    The rounds that follow are bit-identical to those of an uninterrupted run. Results of a finished run that are
    damaged, see `fedflat verify`, are made again.
    """
    from ..engine.ranks import joined
    from ..experiments.run_directory import RunDirectory
    from ..experiments.spec import StudySpec
    from .execution import carry_out_run, carry_out_study

    console = Console(quiet=not is_first_rank())
    if (folder / "study.toml").exists():
        return carry_out_study(console, StudySpec.load(folder / "study.toml"), folder, number_of_jobs(jobs), strict)
    if not (folder / "config.toml").exists():
        raise InputError(f"{folder} holds neither a run (config.toml) nor a study (study.toml)")
    spec = RunDirectory(folder).spec()
    with joined() as ranks:
        carry_out_run(console, spec, folder, ranks, strict)

"""`fedflat compare`: several methods and seeds, one table, one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import Console
from .options import JobsOption, KeysOption, StrictOption, number_of_jobs


def compare(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Folder for runs and report; default runs/NAME-OF-THE-FILE.")] = None,
    jobs: JobsOption = "1",
    strict: StrictOption = False,
    show_keys: KeysOption = False,
) -> None:
    """Run several methods over several seeds, fairly, and compare them.

    For each seed all methods share partition, initial weights, cohorts and batches. Finished runs are
    never computed again, so a study that was stopped, or extended by a method or a seed, goes on.

    Settings come from a TOML file that stands first, and from dotted flags, which override it; `--keys` lists them all.

    fedflat compare examples/digits.toml --rounds 20

    fedflat compare --methods fedavg --methods '{"name": "fedsam", "rho": 0.2}' --seeds 0 --seeds 1
    --client.epochs 5 --client.batch_size 10 --rounds 50 --out runs/two
    """
    from ..experiments.spec import StudySpec
    from .execution import carry_out_study
    from .flags import key_table, resolve, split_file

    console = Console()
    if show_keys:
        return console.show(key_table(StudySpec))
    spec = resolve(StudySpec, context.args)
    file, _ = split_file(context.args)
    path = out or Path("runs") / (file.stem if file else "compare")
    carry_out_study(console, spec, path, number_of_jobs(jobs), strict)

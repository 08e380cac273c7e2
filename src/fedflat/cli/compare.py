"""`fedflat compare`: several methods and seeds, one table, one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..experiments import studies
from ..experiments.spec import StudySpec
from ..experiments.studies import Jobs
from ..reports.comparison import compare as compare_runs
from .caution import caution
from .console import Console
from .conversion import convert_for
from .flags import CONTEXT, key_table, resolve, split_file
from .jobs import JobsFlag, StrictFlag, jobs_of
from .outcome import show
from .progress import watcher


def register(app: typer.Typer) -> None:
    app.command("compare", context_settings=CONTEXT, options_metavar="[FILE.toml] [--KEY VALUE]...")(compare)


def compare(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Folder for runs and report; default runs/NAME-OF-THE-FILE.")] = None,
    jobs: JobsFlag = "1",
    strict: StrictFlag = False,
    show_keys: Annotated[
        bool, typer.Option("--keys", help="List every setting that a flag or the file may give.")
    ] = False,
) -> None:
    """Run several methods over several seeds, fairly, and compare them.

    For each seed all methods share partition, initial weights, cohorts and batches. Finished runs are
    never computed again, so a study that was stopped, or extended by a method or a seed, goes on.

    Settings come from a TOML file that stands first, and from dotted flags, which override it; `--keys` lists them all.

    fedflat compare examples/digits.toml --rounds 20

    fedflat compare --methods fedavg --methods '{"name": "fedsam", "rho": 0.2}' --seeds 0 --seeds 1
    --client.epochs 5 --client.batch_size 10 --rounds 50 --out runs/two
    """
    console = Console()
    if show_keys:
        return console.show(key_table(StudySpec))
    spec = resolve(StudySpec, context.args)
    file, _ = split_file(context.args)
    path = out or Path("runs") / (file.stem if file else "compare")
    carry_out(console, spec, path, jobs_of(jobs), strict)


def carry_out(console: Console, spec: StudySpec, path: Path, jobs: Jobs = 1, strict: bool = False) -> None:
    """Run what is left of a study, then show and write the comparison."""
    convert_for(console, spec)
    caution(console, spec)
    with watcher(console, spec.rounds * len(spec.methods) * len(spec.seeds)) as watching:
        runs = studies.study(spec, path, watching, jobs, strict)
    show(console, [(compare_runs(runs, targets=spec.targets, protocol=spec.protocol), None, ())], path)

"""The commands for a study that several processes carry out: `fedflat work` and `fedflat status`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from time import sleep, time
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import InputError
from ..core.object_references import allow_code, check_allowed
from .console import FAILED, Console
from .flag_names import check_flags
from .run import AllowCodeOption, JobsOption, JobsPerGpuOption, StrictOption, parse_jobs

if TYPE_CHECKING:
    from rich.table import Table

    from ..experiments.spec import StudySpec
    from ..experiments.study_status import RunStatus, State

LEASE = 60.0  # seconds, as in `experiments.claims`, which takes long to import


def work(
    context: typer.Context,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study, which all processes share; default runs/NAME-OF-THE-FILE.")
    ] = None,
    jobs: JobsOption = "1",
    jobs_per_gpu: JobsPerGpuOption = 1,
    lease: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Silence after which other processes may take over a run of this one."),
    ] = LEASE,
    strict: StrictOption = False,
    code: AllowCodeOption = False,
) -> None:
    """Carry out runs of a study together with other processes, on any machines that share its folder.

    fedflat work study.toml --out /shared/study        on every machine, in every task of a Slurm array, ...

    fedflat work /shared/study                         joins a study that has begun

    A process takes the next run that nobody has finished or claimed, until there is none. If it ends or falls silent,
    another process continues its run from the last checkpoint; results are those of one process, bit for bit. A
    run that fails is left out by all; `fedflat resume` tries it again. `fedflat status` shows what becomes of the runs,
    and `fedflat report` compares the finished ones, both at any time.

    The exit code is 1 if a run failed here.
    """
    check_flags(context.args, "study")
    from ..experiments.claims import ClaimObserver, check_lease
    from ..experiments.studies import share_study
    from ..experiments.study_status import counts, run_statuses, runs_in
    from .execution import prepare_data, warn_of_doubtful_settings
    from .progress import StartsAndResults

    check_lease(lease)
    console, at_a_time = Console(), parse_jobs(jobs, jobs_per_gpu)
    spec, path = _study(context, out, code)
    prepare_data(console, spec)
    warn_of_doubtful_settings(console, spec)
    watching = StartsAndResults(console, spec.runs(), spec.protocol)
    failures = share_study(spec, path, watching, at_a_time, strict, lease)
    found = counts(run_statuses(runs_in(path), ClaimObserver()))
    console.say(f"nothing left to do here: {_in_words(found)} in {path}")
    if failures:
        raise typer.Exit(FAILED)


def _study(context: typer.Context, out: Path | None, code: bool) -> tuple[StudySpec, Path]:
    """Return the study that the command line describes or that its folder holds, and the folder.

    Raises InputError if neither is given, and for settings beside a folder.
    """
    from ..experiments.spec import StudySpec
    from ..experiments.studies import load_study
    from .flags import resolve, split_file

    file, flags = split_file(context.args)
    if file is None:
        raise InputError("work needs the TOML file of a study or the folder of one; see `fedflat work --help`")
    if not file.is_dir():
        context.with_resource(allow_code())  # the user's own command line and file may name code
        return resolve(StudySpec, context.args), out or Path("runs") / file.stem
    if flags or out is not None:
        given = flags[0] if flags else "--out"
        raise InputError(f"{given}: the settings of the study in {file} are fixed; leave it out")
    if code:
        context.with_resource(allow_code())
    spec = load_study(file)
    for name in spec.outside_names():
        check_allowed(name)
    return spec, file


def status(
    folder: Annotated[Path, typer.Argument(help="Folder of a study or of a run.")],
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Show it again at this interval, until nothing is left."),
    ] = None,
) -> None:
    """Show which runs of a study are finished, running (where, since when, how fast), waiting, or failed.

    With --watch, a process that shows no sign of life for its lease is shown as silent; another process will take its
    run over. A process of this machine is known at once to have ended.
    """
    from ..experiments.claims import ClaimObserver
    from ..experiments.study_status import counts, run_statuses, runs_in

    if watch is not None and watch <= 0:
        raise InputError(f"--watch {watch} must be more than 0")
    console, observer = Console(), ClaimObserver()
    while True:
        found = run_statuses(runs_in(folder), observer)
        numbers = counts(found)
        shown = [one for one in found if one.state not in ("finished", "waiting")]
        if shown:
            console.show(_table(shown))
        console.say(f"{len(found)} runs: {_in_words(numbers)}")
        if watch is None or numbers.keys() <= {"finished", "failed"}:
            return
        sleep(watch)


def _in_words(numbers: dict[State, int]) -> str:
    return ", ".join(f"{number} {state}" for state, number in numbers.items())


def _table(shown: list[RunStatus]) -> Table:
    """Return a table of runs that are under way or have failed."""
    from ..reports.plans import duration
    from ..reports.text_table import text_table

    rows = []
    for one in shown:
        claim, speed, left, where, since = one.claim, "", "", one.error or "", ""
        if claim is not None:
            gpus = f", GPU {claim.gpus}" if claim.gpus else ""
            where = f"{claim.holder}{gpus}"
            since = f"{datetime.fromtimestamp(claim.began):%m-%d %H:%M} ({duration(max(0.0, time() - claim.began))})"
            if claim.seconds is not None:
                speed, left = f"{claim.seconds:.3g}", duration(claim.seconds * (one.rounds - one.done))
        rows.append((one.title, one.state, f"{one.done} of {one.rounds}", speed, left, since, where))
    return text_table(
        ("run", "state", "rounds", "s a round", "left", "since", "where, or why"),
        rows,
        ("run", "state", "where, or why"),
    )

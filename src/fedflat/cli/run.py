"""The commands that train: `fedflat run` (one method, one seed), `fedflat compare` (several) and `fedflat resume`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..core.errors import InputError, is_first_rank
from ..core.object_references import allow_code
from ..operating_system import refuse_on_windows
from .console import Console
from .flag_names import check_flags

if TYPE_CHECKING:
    from ..experiments.jobs import Jobs

GRACE = 60  # seconds
PATIENCE = 1800.0  # seconds, as in `engine.ranks`, which takes seconds to import
KeysOption = Annotated[bool, typer.Option("--keys", help="List every setting of flags and files.")]
JobsOption = Annotated[
    str,
    typer.Option(
        "--jobs",
        metavar="N|auto",
        help="Runs at a time, each in its own process with a share of the cores, and with a GPU of its own where the "
        "device is cuda; auto is one per core or GPU. No result changes; N runs need N times the memory.",
    ),
]
JobsPerGpuOption = Annotated[int, typer.Option("--jobs-per-gpu", metavar="K", help="Runs at a time that share a GPU.")]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse to resume with other versions of torch, numpy or fedflat or changed code of the user; "
        "without it, only warn.",
    ),
]
AllowCodeOption = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Run the code that the folder's settings name, such as my.py:MyMethod; only for folders that you trust.",
    ),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="csv|tensorboard|wandb|mlflow",
        help="Also write every round to this tool; may repeat; all but csv need an extra of the installation.",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        help="Print the resolved configuration and its cost, memory and time from a few trial steps; train nothing."
    ),
]


def parse_jobs(text: str, per_gpu: int) -> Jobs:
    """Parse the values of --jobs and --jobs-per-gpu. Raises InputError if one is wrong."""
    from ..experiments.jobs import Jobs  # here, because it imports torch

    return Jobs(int(text) if text.isdecimal() else cast("Any", text), per_gpu)


def run(
    context: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; default runs/METHOD-seedN-HASH.")] = None,
    ranks: Annotated[
        int,
        typer.Option(
            "--ranks", help="Processes of torchrun that share the clients of every round; no result depends on them."
        ),
    ] = 0,
    max_restarts: Annotated[
        int,
        typer.Option("--max-restarts", help="With --ranks: how often torchrun restarts all ranks after one fails."),
    ] = 0,
    grace: Annotated[
        int,
        typer.Option("--grace", help="With --ranks: seconds to wait for ranks after a signal; must exceed one round."),
    ] = GRACE,
    patience: Annotated[
        float, typer.Option("--patience", help="Seconds that a rank waits for the others; must exceed one round.")
    ] = PATIENCE,
    strict: StrictOption = False,
    track: TrackOption = None,
    dry_run: DryRunOption = False,
    show_keys: KeysOption = False,
) -> None:
    """Run one method and write its settings, checkpoints and results to a folder.

    Settings come from an optional TOML file, and from dotted flags, which override it; `--keys` lists them all.

    fedflat run --data.name digits --data.clients 50 --partition.name dirichlet --partition.alpha 0.1
    --method.name fedsmoo --method.rho 0.05 --client.epochs 5 --client.batch_size 10 --rounds 50 --out runs/smoo

    The same command resumes a stopped run from its last checkpoint.

    fedflat run study.toml --ranks 4 --max-restarts 3, or torchrun --nproc-per-node 4 -m fedflat run study.toml,
    share the clients of every round among processes, each on its own GPU if there are GPUs.
    """
    check_flags(context.args)
    from ..engine.ranks import joined
    from ..experiments.spec import RunSpec
    from ..experiments.tracking import check_trackers
    from .execution import carry_out_run, prepare_data, show_cost, warn_of_doubtful_settings
    from .flags import key_table, resolve

    console = Console(quiet=not is_first_rank())
    if show_keys:
        return console.show(key_table(RunSpec))
    context.with_resource(allow_code())  # the user's own command line and file may name code
    spec, tracked = resolve(RunSpec, context.args), check_trackers(track or ())
    prepare_data(console, spec)
    warn_of_doubtful_settings(console, spec)
    if dry_run:
        console.say(*spec.to_toml().split("\n"))
        return show_cost(console, spec)
    if patience <= 0:
        raise InputError(f"--patience {patience} must be more than 0")
    path = out or Path("runs") / f"{spec.label}-{spec.digest()}"
    if ranks:
        words = ["run", *context.args, "--out", str(path), "--patience", str(patience), *["--strict"] * strict]
        words += [word for name in tracked for word in ("--track", name)]
        return _launch(ranks, max_restarts, grace, words)
    with joined(patience) as all_ranks:
        carry_out_run(console, spec, path, all_ranks, strict, tracked)


def _launch(number: int, restarts: int, grace: int, words: Sequence[str]) -> None:
    """Run `python -m fedflat WORDS` in `number` ranks of torchrun, on this machine.

    Raises InputError for a number that is too small. If ranks fail, raises typer.Exit with the exit code of the rank
    that caused the failure.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from ..engine.local_ranks import BACKEND, LOOPBACK, OneMachine, meeting_place
    from ..experiments.interrupt import signals_restored
    from ..files import temporary_folder

    refuse_on_windows(f"--ranks {number}", "ranks", "leave out --ranks")
    for name, value, least in (("--ranks", number, 1), ("--max-restarts", restarts, 0), ("--grace", grace, 0)):
        if value < least:
            raise InputError(f"{name} {value} must be at least {least}")
    rendezvous_handler_registry.register(BACKEND, lambda parameters: OneMachine())
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with signals_restored(), temporary_folder("fedflat-ranks-", Path(gettempdir())) as folder:
            config = LaunchConfig(
                min_nodes=1, max_nodes=1, nproc_per_node=number, run_id=f"fedflat-{os.getpid()}", max_restarts=restarts,
                rdzv_backend=BACKEND, local_addr=LOOPBACK, shutdown_timeout=grace,
                logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
            )  # fmt: skip
            with meeting_place(folder):
                elastic_launch(config, sys.executable)("-m", "fedflat", *words)
    except ChildFailedError as error:  # torch's own report is not shown
        # Report the first cause: ranks that torchrun ended (SIGTERM), or that lost another rank, come last.
        rank, failure = min(
            error.failures.items(), key=lambda one: (one[1].exitcode == -signal.SIGTERM, one[1].exitcode >= 0)
        )
        if failure.exitcode < 0:
            name = failure.signal_name()
            Console(stderr=True).say(
                f"fedflat: rank {rank} was ended by {name} (is memory short?); "
                "the same command resumes from the last checkpoint"
            )
        raise typer.Exit(code=failure.exitcode if failure.exitcode > 0 else 1) from error
    except SignalException as error:
        raise typer.Exit(code=128 + error.sigval) from error


def compare(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for runs and report; default runs/NAME-OF-THE-FILE, or without a file runs/compare-HASH."
        ),
    ] = None,
    jobs: JobsOption = "1",
    jobs_per_gpu: JobsPerGpuOption = 1,
    strict: StrictOption = False,
    track: TrackOption = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            help="Print the numbers of runs and finished runs, and the cost of the others, from a few trial steps "
            "or a short run of each method; write nothing."
        ),
    ] = False,
    show_keys: KeysOption = False,
) -> None:
    """Run several methods over several seeds, fairly, and compare them.

    For each seed all methods share partition, initial weights, cohorts and batches. Finished runs are
    never computed again: the same command resumes a stopped study, also with more methods or seeds.

    Settings come from an optional TOML file, and from dotted flags, which override it; `--keys` lists them all.

    fedflat compare examples/digits.toml --rounds 20

    fedflat compare --methods fedavg --methods '{"name": "fedsam", "rho": 0.2}' --seeds 0 --seeds 1
    --client.epochs 5 --client.batch_size 10 --rounds 50 --out runs/two

    fedflat compare --grid '{"client.lr": [0.05, 0.1, 0.2], "method.rho": [0.02, 0.1]}' --jobs 4 --dry-run
    """
    check_flags(context.args, "study")
    from ..experiments.spec import StudySpec
    from ..experiments.studies import default_folder
    from ..experiments.tracking import check_trackers
    from .execution import carry_out_study, show_plan
    from .flags import key_table, resolve, split_file

    console = Console()
    if show_keys:
        return console.show(key_table(StudySpec))
    context.with_resource(allow_code())  # the user's own command line and file may name code
    spec, tracked = resolve(StudySpec, context.args), check_trackers(track or ())
    file, _ = split_file(context.args)
    path = out or (Path("runs") / file.stem if file else default_folder(spec))
    if dry_run:
        return show_plan(console, spec, path, parse_jobs(jobs, jobs_per_gpu))
    carry_out_study(console, spec, path, parse_jobs(jobs, jobs_per_gpu), strict, tracked)


def resume(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder of a run or of a study.")],
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", metavar="N", help="Extend the run or study to N rounds in total, finished or not."),
    ] = None,
    jobs: JobsOption = "1",
    jobs_per_gpu: JobsPerGpuOption = 1,
    strict: StrictOption = False,
    code: AllowCodeOption = False,
    track: TrackOption = None,
) -> None:
    """Resume a stopped run or study from its newest undamaged checkpoint, or extend it by more rounds.

    The remaining rounds are bit-identical to those of an uninterrupted run. Damaged results of a finished run, see
    `fedflat verify`, are restored.
    """
    from ..engine.ranks import joined
    from ..experiments.run_directory import RunDirectory
    from ..experiments.tracking import check_trackers
    from .execution import resume_run, resume_study

    tracked = check_trackers(track or ())
    console = Console(quiet=not is_first_rank())
    if code:
        context.with_resource(allow_code())
    if (folder / "study.toml").exists():
        return resume_study(console, folder, rounds, parse_jobs(jobs, jobs_per_gpu), strict, tracked)
    if (folder / "tune.toml").exists():
        raise InputError(
            f"{folder} holds a search; resume it with `fedflat tune {folder / 'tune.toml'} --out {folder}`"
        )
    RunDirectory(folder).spec()  # raises InputError for a folder without a run to resume
    with joined() as ranks:
        resume_run(console, folder, rounds, ranks, strict, tracked)

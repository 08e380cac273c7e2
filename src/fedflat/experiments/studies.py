"""Carries out studies in folders: every method with every seed, in sequence or in parallel.

`study` and `load_run` are public as `fedflat.study` and `fedflat.load_run`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from time import sleep
from typing import Any, Literal, TypeVar

from ..core.errors import ChangedWarning, InputError
from ..core.hyper import takes_numbers
from ..core.object_references import allow_code
from ..engine.ranks import is_launched
from ..files import flush_folder, make_folder, system_errors, writing
from ..rounds.checksums import Checksums
from .claims import LEASE, BusyError, ClaimObserver
from .config_errors import validated
from .interrupt import Interrupted, StopRequest, stop_between_rounds
from .jobs import Jobs, gpus_of_jobs
from .parallel import ParallelRuns
from .run_directory import RunDirectory, StoredRun, difference, remedy
from .run_queue import RunQueue, Runs
from .runner import CHECK_INTERVAL, RunExecution, RunObserver, load_newest_checkpoint
from .settings_tables import merged
from .spec import Experiment, RunSpec, StudySpec

ONE = Jobs()
EXTENSIBLE = ("methods", "seeds", "protocol", "grid")  # settings that may change when a study is extended
BUSY = "--out {} is being written by another study"
PATIENCE = 60.0  # seconds to wait for a process that begins the same study
Spec = TypeVar("Spec", bound=Experiment)


def load_run(folder: str | Path) -> StoredRun:
    """Open the finished run in a folder that `fedflat run`, a study (runs/NAME) or `Run.save` has written.

    The result has `metrics` (a pyarrow table; `to_pandas()`), `summary`, `settings`, `flatness`, `counts`, `model` and
    `spec`. Nothing is unpickled, and code that the folder names, such as my.py:MyModel, is executed only inside
    `fedflat.allow_code()`. Raises InputError if there is no finished run, and for a damaged file.
    """
    return StoredRun.open(Path(folder))


@takes_numbers
def study(
    file: str | Path | None = None,
    *,
    out: str | Path,
    jobs: int | Literal["auto"] = 1,
    jobs_per_gpu: int = 1,
    strict: bool = False,
    observer: RunObserver | None = None,
    **settings: Any,
) -> list[StoredRun]:
    """Carry out a study as `fedflat compare` does, and return its finished runs, which `fedflat.compare` compares.

    file: a TOML file, which `settings` override. settings: keys of a study, as values, dictionaries or objects, e.g.
    `methods=["fedavg", ff.methods.FedSAM(rho=0.05)], partition=ff.Dirichlet(alpha=0.1), client=ff.Client(lr=0.1),
    data={"name": "digits", "clients": 20}, rounds=50, seeds=[0, 1, 2], grid={"client.lr": [0.1, 0.3]}`.
    out: the folder; finished runs in it are not computed again. jobs: the number of runs that are carried out at a
    time, or "auto"; a script needs no main guard. On the device cuda, at most `jobs_per_gpu` runs at a time share a
    GPU. observer: its methods are called with the progress.

    Raises InputError as the command does, Interrupted after Ctrl-C (finished rounds are saved), and NonFiniteError if
    every run diverges. Code that the file or the settings name is executed.
    """
    with allow_code():
        table = Experiment.read(Path(file)) if file is not None else {}
        spec = validated(StudySpec, merged(StudySpec, table, settings))
        return carry_out_study(spec, Path(out), observer, Jobs(jobs, jobs_per_gpu), strict)


def carry_out_study(
    spec: StudySpec, path: Path, observer: RunObserver | None = None, jobs: Jobs = ONE, strict: bool = False
) -> list[StoredRun]:
    """Carry out every run of `spec` below the folder `path` and return those that finished.

    jobs: how many runs are carried out at a time, each in a process of its own with its share of the threads. Time and
    memory depend on this number, results do not.
    strict: refuse to resume if versions or code have changed since the saved rounds, instead of warning.

    A run that diverges is reported to the observer and does not stop the others. Raises InputError if the folder cannot
    be used, NonFiniteError if no run finished, and Interrupted after a signal.
    """
    [finished] = carry_out_studies({path: spec}, observer, jobs, strict)
    return finished


def carry_out_studies(
    specs: Mapping[Path, StudySpec], observer: RunObserver | None = None, jobs: Jobs = ONE, strict: bool = False
) -> list[list[StoredRun]]:
    """Carry out several studies, given by folder, as `carry_out_study` does; return the finished runs of each.

    The runs of all studies form one queue, so that no process waits for the last run of a study. Raises NonFiniteError
    if one of the studies has no finished run.
    """
    if is_launched():
        raise InputError("torchrun is for `fedflat run`; a study runs in one process, or with --jobs in several")
    runs = [runs_of(spec, path) for path, spec in specs.items()]
    every_run = [run for runs_of_study in runs for run in runs_of_study]
    check_folders(every_run)
    number = min(jobs.count(spec.device, len(every_run)) for spec in specs.values())
    with stop_between_rounds() as request:
        for path, spec in specs.items():
            begin_study(spec, path)
        failures = carry_out_all(RunQueue(every_run), number, observer or RunObserver(), request, strict)
    finished = [
        [StoredRun.open(directory.path) for _, directory in runs_of_study if directory.is_finished]
        for runs_of_study in runs
    ]
    if failures and not all(finished):
        raise failures[-1]
    return finished


def share_study(
    spec: StudySpec, path: Path, observer: RunObserver | None = None, jobs: Jobs = ONE, strict: bool = False,
    lease: float = LEASE,
) -> list[Exception]:  # fmt: skip
    """Carry out runs of the study in `path` that nobody has finished or claimed, until there are none.

    Returns the errors of the runs that failed here.

    Any number of processes on the machines that share the folder may call this function at the same time. A run that
    fails is left out, by the other processes, too. lease: seconds of silence after which another process may take over
    a run of this process. Raises InputError if the folder cannot be used, and Interrupted after a signal.
    """
    runs = runs_of(spec, path)
    check_folders(runs)
    number = jobs.count(spec.device, len(runs))
    queue = RunQueue(runs, shared=True, lease=lease)
    with stop_between_rounds() as request:
        begin_study(spec, path)
        return carry_out_all(queue, number, observer or RunObserver(), request, strict)


def carry_out_all(
    queue: RunQueue, number: int, observer: RunObserver, request: StopRequest, strict: bool = False
) -> list[Exception]:
    """Carry out the runs of `queue`, `number` at a time; return the errors of those that were left out.

    These are runs that diverged and, if the queue is shared, runs with any other error. Raises Interrupted after a
    signal.
    """
    if number > 1:
        gpus = gpus_of_jobs(queue.device)
        return ParallelRuns(number, observer, request, strict, gpus).carry_out(queue)
    failures = []
    while not queue.is_over:
        if (run := queue.next()) is None:
            wait_for_others(request)
            continue
        execution = RunExecution(
            run.spec, run.directory, observer, request, strict, observed=run.observed, lease=queue.lease
        )
        try:
            execution.carry_out()
        except BusyError:
            queue.put_back(run)
        except queue.left_out as error:
            failures.append(error)
            observer.run_failed(run.spec, error)
    return failures


def wait_for_others(request: StopRequest) -> None:
    """Wait before the next look at runs of other processes. Raises Interrupted after a signal."""
    if request.signal_number:
        raise Interrupted(request.signal_number, "the runs of other processes go on")
    sleep(CHECK_INTERVAL)


def run_directory(spec: RunSpec, study_path: Path) -> RunDirectory:
    """Return the folder of one run of a study; the same settings always have the same folder."""
    return RunDirectory(study_path / "runs" / f"{spec.label}-{spec.digest()}")


def runs_of(spec: StudySpec, path: Path) -> Runs:
    """Return the runs of a study and their folders."""
    return [(run, run_directory(run, path)) for run in spec.runs()]


def check_finished(runs: Runs) -> None:
    """Raise InputError if the folder of a finished run holds another run."""
    for spec, directory in runs:
        if directory.is_finished:
            directory.check_same_run(spec)


def check_folders(runs: Runs) -> None:
    """Raise InputError if two different runs have the same folder, because their digests are equal."""
    known: dict[Path, RunSpec] = {}
    for spec, directory in runs:
        other = known.setdefault(directory.path, spec)
        if other is not spec and (found := difference(other.decisive(), spec.decisive())):
            raise InputError(
                f"two runs of {spec.label} have one folder, {directory.path}: {found}; leave out one value"
            )


def begin_study(spec: StudySpec, path: Path) -> None:
    """Make the study's folder and write its configuration. Raises InputError as `check_study_folder` does."""
    # Another process may begin at the same time; without locks, those of one study write the same bytes.
    with writing(path, BUSY.format(path), PATIENCE, needed=False):
        check_study_folder(spec, path)
        if not (path / "study.toml").exists() or load_study(path).to_toml() != spec.to_toml():
            write_study(spec, path)


def check_study_folder(spec: StudySpec, path: Path) -> None:
    """Raise InputError for a folder that holds a run, a search, or another study with a run that has begun.

    Methods, seeds, grid and protocol may differ from those of the study in the folder, because they may be extended.
    """
    if (path / "config.toml").exists():
        raise InputError(f"--out {path} holds a run; choose another folder for a study")
    if (path / "tune.toml").exists():
        raise InputError(f"--out {path} holds a search; choose another folder for a study, e.g. {path}-winners")
    if any(path.glob("runs/*/config.toml")) and (path / "study.toml").exists():
        old, new = _fixed(load_study(path)), _fixed(spec)
        if found := difference(old, new):
            raise InputError(f"--out {path} holds another study: {found}; {remedy(path, old, new, spec)}")


def write_study(spec: StudySpec, path: Path) -> None:
    """Write a study's configuration. Raises InputError if it cannot be written."""
    make_folder(path)
    Checksums(path, required=True).write("study.toml", lambda file: file.write_bytes(spec.to_toml().encode()))


def load_study(path: Path) -> StudySpec:
    """Load the configuration of the study in the folder `path`. Raises InputError if it is missing or damaged."""
    return StudySpec.load(Checksums(path, required=True).check("study.toml"))


def default_folder(spec: StudySpec) -> Path:
    """Return the default folder of a study without a TOML file; studies that extend each other have the same one."""
    plain = StudySpec()
    return Path("runs") / f"compare-{spec.model_copy(update={x: getattr(plain, x) for x in EXTENSIBLE}).digest()}"


def _fixed(spec: StudySpec) -> dict[str, Any]:
    """Return the settings that all studies in one folder share."""
    return {name: value for name, value in spec.decisive().items() if name not in EXTENSIBLE}


def runs_in_folder(spec: StudySpec, path: Path) -> tuple[list[StoredRun], int]:
    """Return the finished runs in the folder of a study, and the number of unfinished runs, planned or begun.

    The finished runs include those of earlier versions of the study, with other methods, seeds or grids. Raises
    InputError if the folder of a run of `spec` holds another run, or if no run is finished.
    """
    planned = runs_of(spec, path)
    check_finished(planned)
    folders = dict.fromkeys(directory.path for _, directory in planned)
    earlier = [folder for folder in sorted(path.glob("runs/*")) if folder not in folders]
    directories = [RunDirectory(folder) for folder in [*folders, *earlier]]
    unfinished = sum(not one.is_finished and (one.path in folders or one.has_begun) for one in directories)
    return _finished(directories, path), unfinished


def stored_study(path: Path) -> tuple[StudySpec, list[StoredRun]]:
    """Return the configuration and the finished runs of the study in the folder `path`.

    Raises InputError if it holds no study or no finished run, or if the folder of a run holds another run.
    """
    if (path / "tune.toml").exists():
        raise InputError(f"{path} holds a search; the settings that it chose are in winners.toml")
    spec = load_study(path)
    runs = runs_of(spec, path)
    check_finished(runs)
    return spec, _finished([directory for _, directory in runs], path)


def _finished(directories: Sequence[RunDirectory], path: Path) -> list[StoredRun]:
    """Return the finished runs of the study in the folder `path`. Raises InputError if no run has finished."""
    runs = [StoredRun(directory) for directory in directories if directory.is_finished]
    if not runs:
        raise InputError(f"{path} holds no finished run; continue the study with `fedflat resume {path}`")
    return runs


def with_rounds(spec: Spec, rounds: int) -> Spec:
    """Return `spec` with this number of `rounds`. Raises InputError if the number is not allowed."""
    return validated(type(spec), spec.table() | {"rounds": rounds})


def extend_run(directory: RunDirectory, rounds: int, strict: bool = False) -> RunSpec:
    """Set the number of `rounds` of the run in `directory`, finished or not; no round is computed here.

    The run's summary, model and flatness are removed, because the model is no longer final. Raises InputError, and
    changes nothing, if the run already has `rounds` rounds or more, or if it cannot be resumed: its checkpoints are
    damaged, too few cohorts are listed, or, with `strict`, versions or code have changed.
    """
    spec = directory.spec()
    longer = _with_more(spec, rounds, directory.path)
    with directory.writing():
        if directory.is_finished and not directory.checkpoints:
            raise InputError(f"{directory.path} cannot be extended: it has no checkpoint")
        with closing(longer.build(directory.state)) as sim, warnings.catch_warnings():
            warnings.simplefilter("ignore", ChangedWarning)  # the run warns when it is resumed
            load_newest_checkpoint(sim, directory, strict)
        directory.reopen(longer)
    return longer


def extend_study(path: Path, rounds: int, strict: bool = False) -> StudySpec:
    """Set the number of `rounds` of the study in `path` and extend the runs that have begun; no round is computed.

    If the process is killed before the end, the same call completes the change. Raises InputError as `extend_run` does.
    """
    spec = load_study(path)
    if "rounds" in spec.grid:
        raise InputError(f"--rounds {rounds}: the grid of {path} has the rounds of each run; change the grid")
    longer = _with_more(spec, rounds, path)
    with writing(path, BUSY.format(path)):
        for _, directory in runs_of(spec, path):
            if not (observed := ClaimObserver().look(directory.path)).is_free:
                raise observed.busy(directory.path)
        for before, after in zip(spec.runs(), longer.runs(), strict=True):
            old, new = run_directory(before, path), run_directory(after, path)
            if not old.has_begun or new.path.exists():
                continue
            old.check_same_run(before, any_rounds=True)
            if old.spec().rounds < rounds:
                extend_run(old, rounds, strict)
            with system_errors(old.path, "renamed"):
                old.path.rename(new.path)
                flush_folder(new.path.parent)
        write_study(longer, path)
    return longer


def _with_more(spec: Spec, rounds: int, path: Path) -> Spec:
    if rounds <= spec.rounds:
        raise InputError(f"--rounds {rounds}: {path} already has {spec.rounds} rounds; give a larger number")
    if label := spec.planned_by_rounds():
        raise InputError(f"--rounds {rounds}: {label} depends on the planned {spec.rounds} rounds, so "
                         f"{path} cannot get more; start a new run with --out")  # fmt: skip
    return with_rounds(spec, rounds)

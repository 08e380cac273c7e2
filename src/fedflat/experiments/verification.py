"""Checks the files of a run, a study or a search: reports damaged files and how they can be restored."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import InputError
from ..engine.client_store import check_records
from ..files import TEMPORARY, read_text
from ..rounds import checkpoint
from ..rounds.checksums import FILE as CHECKSUMS
from ..rounds.checksums import Checksums
from ..rounds.server import metrics_table
from .ledger import CURVES, LEDGER, Ledger
from .run_directory import METRICS, RunDirectory, difference
from .run_file_readers import read_metrics
from .spec import StudySpec
from .studies import load_study, runs_of
from .tracking.trackers import AGAIN as TRACKED_AGAIN
from .tracking.trackers import METRICS as TRACKED_METRICS
from .tracking.trackers import STATE, check_csv
from .tuning import SETTINGS, WINNERS, comparable, result, settings_of, winning_study


@dataclass(frozen=True)
class Verdict:
    """The result of checking one file."""

    path: Path
    problem: str = ""  # in words; empty if the file is not damaged
    remedy: str = ""  # how it can be restored, or why that is not needed
    note: str = ""  # a remark on an undamaged file


def verify_study(path: Path) -> Iterator[Verdict]:
    """Check the study's own file and the files of every run that has begun."""
    restart = "remove it and start the study again with the same command"
    spec: StudySpec | None = None
    yield from _check_listed_files(Checksums(path, required=True), {"study.toml": restart})
    with suppress(InputError):
        spec = load_study(path)
    for _, directory in runs_of(spec, path) if spec else ():
        if directory.path.exists():
            yield from verify_run(directory.path)


def verify_search(path: Path) -> Iterator[Verdict]:
    """Check the search's own files, which must agree with its trials, and the files of every trial."""
    command = f"`fedflat tune {path / SETTINGS} --out {path}`"
    remedies = {
        SETTINGS: "remove it and start the search again with the same command",
        LEDGER: f"remove it, and {command} restores it from the trials",
        CURVES: f"{command} restores it from the ledger",
        WINNERS: f"{command} restores it from the ledger",
    }
    damaged = set()
    for verdict in _check_listed_files(Checksums(path, required=True), remedies):
        damaged |= {verdict.path.name} if verdict.problem else set()
        yield verdict
    if not damaged & {SETTINGS, LEDGER, CHECKSUMS}:
        yield from _compare_search(path, remedies, damaged)
    for trial in sorted((path / "trials").glob("*")):
        if trial.is_dir():
            yield from verify_run(trial)


def _compare_search(path: Path, remedies: Mapping[str, str], damaged: Container[str]) -> Iterator[Verdict]:
    """Compare the ledger of a search with its trials, and undamaged curves and winners with the ledger."""
    spec = settings_of(path)
    ledger = Ledger(path, spec)
    try:
        entries = ledger.read()
    except InputError as error:
        yield Verdict(path / LEDGER, str(error))
        return
    # A killed process may leave the curves of earlier steps.
    known = ledger.curves_text(entries)
    if (path / CURVES).exists() and CURVES not in damaged and not known.startswith(read_text(path / CURVES)):
        yield Verdict(path / CURVES, f"it does not agree with {LEDGER}", remedies[CURVES])
    if WINNERS in damaged:
        return
    if len({one.rounds for one in entries}) < len(spec.tune.rounds) or not (path / WINNERS).exists():
        yield Verdict(path, note=f"not finished: the same command resumes it; {LEDGER} has {len(entries)} entries")
    elif difference(comparable(StudySpec.load(path / WINNERS)), comparable(winning_study(spec, result(spec, entries)))):
        yield Verdict(path / WINNERS, f"it does not agree with {LEDGER}", remedies[WINNERS])


def _check_listed_files(checksums: Checksums, remedies: Mapping[str, str]) -> Iterator[Verdict]:
    """Check those files of `remedies` that exist or have a digest."""
    for name, remedy in remedies.items():
        path = checksums.folder / name
        try:
            if checksums.knows(name):
                problem = checksums.problem(name)
                yield Verdict(path, problem, remedy) if problem else Verdict(path)
        except InputError as error:
            yield Verdict(checksums.folder / CHECKSUMS, str(error), f"remove it, and for each of its files: {remedy}")
            return


def verify_run(path: Path) -> Iterator[Verdict]:
    """Check the files of a run, then its checkpoints, the newest last."""
    directory = RunDirectory(path)
    states = [_check_checkpoint(directory, path) for path in directory.checkpoints[-checkpoint.KEPT :]]
    for old in directory.checkpoints[: -checkpoint.KEPT]:  # the records they need may be overwritten
        yield Verdict(old, note="an old checkpoint that a killed process has left; the next one removes it")
    intact = [verdict for verdict in states if not verdict.problem]
    source = (
        f"`fedflat resume {path}` restores it from {intact[-1].path.name}" if intact else "all checkpoints are damaged"
    )
    yield from _check_files(directory, source)
    if not directory.is_finished and directory.has_begun:
        yield _progress(directory, intact[-1].path if intact else None)
    if not directory.is_finished and intact:
        yield _check_metrics(directory, [verdict.path for verdict in intact])
    yield from _check_tracking(directory)
    for verdict in states:
        if directory.is_finished:
            remedy = "not needed: the run is finished"
        elif not intact:
            remedy = "all checkpoints are damaged: the rounds must be computed again"
        elif intact[-1].path > verdict.path:
            remedy = f"not needed: {intact[-1].path.name} is newer and undamaged"
        else:
            remedy = (
                f"the run resumes from {intact[-1].path.name} and computes the later rounds again, to the same bits"
            )
        yield Verdict(verdict.path, verdict.problem, remedy) if verdict.problem else verdict
    note = "an incomplete file of a killed process; the next process that writes here removes it"
    for temporary in (*path.glob(".tmp-*"), *directory.state.glob(".tmp-*")):
        if TEMPORARY.fullmatch(temporary.name):
            yield Verdict(temporary, note=note)


def _check_files(directory: RunDirectory, source: str) -> Iterator[Verdict]:
    """Check the files that SHA256SUMS lists; `source` is the remedy for damaged files except config.toml."""
    try:
        names = directory.checksums.names
    except InputError as error:
        yield Verdict(
            directory.path / CHECKSUMS, str(error), "remove it; the files that it lists can then not be checked"
        )
        return
    if not (names or directory.has_begun or directory.is_finished or directory.checkpoints):
        yield Verdict(directory.path, note="not begun: the same command begins it")
    elif not names:
        yield Verdict(directory.path / CHECKSUMS, "it is missing or empty", "the files can then not be checked")
    restart = "remove it and start the run again with the same command"
    for name in names:
        path, problem = directory.path / name, directory.checksums.problem(name)
        yield Verdict(path, problem, restart if name == "config.toml" else source) if problem else Verdict(path)


def _progress(directory: RunDirectory, state: Path | None) -> Verdict:
    """Report the saved rounds of an unfinished run."""
    try:
        planned = f" of {directory.spec().rounds}"
    except InputError:  # `_check_files` reports config.toml
        planned = ""
    done = checkpoint.round_of(state) if state else 0
    return Verdict(
        directory.path,
        note=f"not finished: {done}{planned} rounds are saved; `fedflat resume {directory.path}` continues",
    )


def _check_metrics(directory: RunDirectory, states: Sequence[Path]) -> Verdict:
    """Check metrics.parquet of an unfinished run, which must agree with its newest undamaged checkpoint.

    The metrics up to the previous checkpoint are accepted, too: the file has these if the process was killed after the
    newest checkpoint was written and before the newest metrics were written.
    """
    path, again = directory.path / METRICS, "it is written again with the next checkpoint"
    history = checkpoint.load(states[-1])[1].get("history", ())
    before = [checkpoint.round_of(state) or 0 for state in states[-2:-1]] if len(states) > 1 else [0]
    try:
        rows = read_metrics(path).to_pylist() if path.exists() else []
    except InputError as error:
        return Verdict(path, str(error), again)
    if len(rows) not in (len(history), *before):
        return Verdict(path, f"it has {len(rows)} of {len(history)} rows", again)
    expected = metrics_table(history[: len(rows)]).to_pylist() if rows else []
    if repr(rows) != repr(expected):
        return Verdict(path, f"it does not agree with {states[-1].name}", again)
    is_behind = len(rows) < len(history)
    return Verdict(path, note=f"it has {len(rows)} of {len(history)} rows; {again}" if is_behind else "")


def _check_tracking(directory: RunDirectory) -> Iterator[Verdict]:
    """Check the file with the trackers' state in the folder of a run, and the CSV tracker's files."""
    if not ((directory.path / STATE).exists() or (directory.path / TRACKED_METRICS).exists()):
        return
    try:
        for name, problem in {STATE: "", **check_csv(directory.path)}.items():
            yield Verdict(directory.path / name, problem, TRACKED_AGAIN if problem else "")
    except InputError as error:
        yield Verdict(directory.path / STATE, str(error))


def _check_checkpoint(directory: RunDirectory, path: Path) -> Verdict:
    """Check one checkpoint, and the clients' records that it refers to."""
    try:
        tensors, _ = checkpoint.load(path, streamed=("clients.",))
        clients = {name.removeprefix("clients."): x for name, x in tensors.items() if name.startswith("clients.")}
        check_records(clients, directory.state)
    except InputError as error:
        return Verdict(path, str(error))
    return Verdict(path)

"""Checks the files of a run or a study: which are damaged, and how they can be restored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from ..core.errors import InputError
from ..engine.client_store import check_records
from ..files import TEMPORARY, parsed
from ..rounds import checkpoint
from ..rounds.checksums import FILE as CHECKSUMS
from .run_directory import METRICS, RunDirectory
from .spec import StudySpec
from .studies import run_directory


@dataclass(frozen=True)
class Verdict:
    """The result of checking one file."""

    path: Path
    problem: str = ""  # in words; empty if the file is not damaged
    remedy: str = ""  # how it can be restored, or why it need not be
    note: str = ""  # a remark on a file that is not damaged


def verify_study(path: Path) -> Iterator[Verdict]:
    """Check the study's own file, and the files of every run that was started."""
    try:
        spec = StudySpec.load(path / "study.toml")
    except InputError as error:
        yield Verdict(path / "study.toml", str(error), "remove it and start the study again with the same command")
        return
    yield Verdict(path / "study.toml")
    for one in spec.runs():
        directory = run_directory(one, path)
        if directory.path.exists():
            yield from verify_run(directory.path)


def verify_run(path: Path) -> Iterator[Verdict]:
    """Check the files of a run, then its checkpoints, the newest last."""
    directory = RunDirectory(path)
    states = [_check_checkpoint(directory, path) for path in directory.checkpoints]
    whole = [verdict for verdict in states if not verdict.problem]
    source = f"`fedflat resume {path}` makes it again from {whole[-1].path.name}" if whole else "no checkpoint is whole"
    yield from _check_files(directory, source)
    if not directory.is_finished and whole:
        yield _check_metrics(directory, whole[-1].path)
    for verdict in states:
        if directory.is_finished:
            remedy = "the run is finished without it"
        elif not whole:
            remedy = "no checkpoint is whole: the rounds must be computed again"
        elif whole[-1].path > verdict.path:
            remedy = f"not needed: {whole[-1].path.name} is newer and whole"
        else:
            remedy = (
                f"a run goes on from {whole[-1].path.name}, and computes the rounds after it again, to the same bits"
            )
        yield Verdict(verdict.path, verdict.problem, remedy) if verdict.problem else verdict
    for left in (*path.glob(".tmp-*"), *directory.state.glob(".tmp-*")):
        if TEMPORARY.fullmatch(left.name):
            yield Verdict(
                left, note="an incomplete file of a killed process; the next process that writes here removes it"
            )


def _check_files(directory: RunDirectory, source: str) -> Iterator[Verdict]:
    """Check the files in SHA256SUMS, which has no checkpoints; `source` says from what they can be made again."""
    try:
        names = directory.checksums.names
    except InputError as error:
        yield Verdict(
            directory.path / CHECKSUMS, str(error), "remove it; the files that it names can then not be checked"
        )
        return
    if not names:
        yield Verdict(directory.path / "config.toml", note="written by an earlier version, without checksums")
    restart = "remove it and start the run again with the same command"
    for name in names:
        path, problem = directory.path / name, directory.checksums.problem(name)
        yield Verdict(path, problem, restart if name == "config.toml" else source) if problem else Verdict(path)


def _check_metrics(directory: RunDirectory, state: Path) -> Verdict:
    """Check metrics.parquet of a run that is not finished: it must have the rows that the checkpoint `state` has."""
    path = directory.path / METRICS
    rows = len(checkpoint.load(state)[1].get("history", ()))
    try:
        found = parsed(path, lambda: pq.read_metadata(path).num_rows) if path.exists() else 0
    except InputError as error:
        return Verdict(path, str(error), "it is written again with the next checkpoint")
    problem = "" if found == rows else f"it has {found} of {rows} rows"
    return Verdict(path, problem, "it is written again with the next checkpoint" if problem else "")


def _check_checkpoint(directory: RunDirectory, path: Path) -> Verdict:
    """Check one checkpoint, and the clients' records that it refers to."""
    try:
        tensors, meta = checkpoint.load(path, streamed=("clients.",))
        clients = {name.removeprefix("clients."): x for name, x in tensors.items() if name.startswith("clients.")}
        check_records(clients, directory.state)
    except InputError as error:
        return Verdict(path, str(error))
    return Verdict(
        path, note="" if meta["format"] > 1 else "of format 1, which has no checksum: damage cannot be detected"
    )

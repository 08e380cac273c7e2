"""The server's folder of a federation: readable at any time, written by one process at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...core.errors import InputError
from ...experiments.run_directory import RunDirectory, difference
from ...experiments.spec import RunSpec
from ...files import flush_folder, parsed, read_json, system_errors, write_atomically
from ...rounds import checkpoint
from ...rounds.checksums import Checksums, digest_of, read_checked
from ...rounds.run_model import save_model
from ...rounds.server import metrics_table
from ..membership import Membership
from ..server import FederatedServer
from .event_log import EVENTS, HEAD, EventLog, LogHead, check_log, head_in, read_events
from .study import Study

STUDY, METRICS, MODEL, RESULT = "federated-study.toml", "metrics.parquet", "model.safetensors", "result.json"
EJECTED = "ejected.json"
CLIENTS = "client_reports.json"  # of a rehearsal
ROUND = "round"  # the name of a round's event, and the key of this event in a checkpoint
SETTINGS = "settings"  # the name of the event with the settings of a run
JOINED = "joined"  # the name of the event of a client that joins
AGAIN_SECONDS = 0.3  # much longer than a server needs from writing a checkpoint to writing the metrics


@dataclass(frozen=True)
class SavedState:
    """An undamaged checkpoint of the server."""

    rounds: int
    path: Path
    history: Sequence[dict[str, float]]
    damaged: tuple[str, ...] = ()  # what is wrong with newer checkpoints, a line each


@dataclass(frozen=True)
class FederationDirectory:
    """The server's folder of a federation.

    It has federated-study.toml, events.jsonl, metrics.parquet, checkpoint/ with the last three checkpoints and, at the
    end, model.safetensors and result.json. If a file disagrees with the newest checkpoint, the checkpoint is right;
    the metrics are written from it.
    """

    path: Path

    @property
    def checksums(self) -> Checksums:
        """The digests of the files of study and result; the result contains the digest of the model's file."""
        return Checksums(self.path, required=True)

    @property
    def states(self) -> dict[int, Path]:
        """The checkpoints by their rounds, oldest first, damaged or not."""
        files = RunDirectory(self.path).checkpoints
        return {checkpoint.round_of(path) or 0: path for path in files}

    def newest(self) -> SavedState | None:
        """Return the newest undamaged checkpoint; None if there is no checkpoint.

        Raises InputError if there are checkpoints and all are damaged.
        """
        damaged: list[str] = []
        for rounds, path in reversed(self.states.items()):
            try:
                return SavedState(rounds, path, _read_history(path), tuple(damaged))
            except InputError as error:
                damaged.append(str(error))
        if damaged:
            raise InputError(damaged[0] + (f" (nor can {len(damaged) - 1} older)" if damaged[1:] else ""))
        return None

    @property
    def has_begun(self) -> bool:
        """Whether the federation has a log or a checkpoint."""
        return (self.path / EVENTS).exists() or bool(self.states)

    @property
    def members(self) -> dict[str, int]:
        """The number of samples of each member that has not left, by name.

        Before the first checkpoint, these are the registered clients.

        Raises InputError if there is no federation, or all of its checkpoints are damaged.
        """
        if not (self.path / STUDY).exists():
            raise InputError(f"{self.path} holds no federation")
        if state := self.newest():
            return Membership.load(state.path).present
        return {event["client"]: event["samples"] for event in read_events(self.path) if event["event"] == "client"}

    def refuse_strangers(self, study: Study, clients: Iterable[str]) -> None:
        """Raise InputError if one of the `clients` is no member of the federation here, and may not join it."""
        state = self.newest()
        if state is None or not (study.closed or (self.path / RESULT).exists()):
            return
        members = Membership.load(state.path).members
        strangers = sorted(set(clients) - members.keys())
        if strangers:
            raise InputError(f"client {strangers[0]}: out {self.path} holds a federation of {', '.join(members)}, "
                             "which no other client can join; choose another folder")  # fmt: skip

    def refuse_other(self, study: Study) -> None:
        """Raise InputError if the folder holds anything but a federation of `study`; nothing is written."""
        if RunDirectory(self.path).has_begun:
            raise InputError(f"out {self.path} holds a run; choose another folder for a federation")
        file = self.path / STUDY
        found = difference(self.spec().decisive(), study.spec.decisive()) if file.exists() else None
        if found:
            raise InputError(f"out {self.path} holds another federation: {found}")

    def spec(self) -> RunSpec:
        """Read the study. Raises InputError if it is missing or damaged."""
        return RunSpec.load(self.checksums.check(STUDY))

    @contextmanager
    def writing(self, study: Study) -> Iterator[None]:
        """Create the folder with the file of `study`, and hold its lock inside the block.

        Raises InputError if another process writes to the folder, if the folder cannot be written, or if it holds
        anything but a federation of `study`.
        """
        self.refuse_other(study)
        with RunDirectory(self.path).writing():
            self.refuse_other(study)
            self.checksums.write(STUDY, lambda path: path.write_bytes(study.spec.to_toml().encode()))
            yield

    def save(self, server: FederatedServer, log: LogHead, event: Mapping[str, Any]) -> None:
        """Write a checkpoint and the metrics; then remove the oldest checkpoint if there are more than three.

        The checkpoint also has `log`, the head of the log so far, and `event`, which will be logged next.
        """
        folder = RunDirectory(self.path).state
        server.save(checkpoint.path_of(folder, server.t), {HEAD: asdict(log), ROUND: dict(event)})
        self.write_metrics(server.history)
        checkpoint.retire(folder, server.t)

    def unlogged_event(self, state: SavedState) -> dict[str, Any]:
        """Return the event of the last round in `state` if the log lacks this event; otherwise an empty dictionary."""
        meta = checkpoint.load(state.path)[1]
        head, event = head_in(meta, state.path), dict(meta.get(ROUND, {}))
        later = read_events(self.path, head.lines)
        known = {found.get("t") for found in later if found["event"] == ROUND}
        return {} if not event or event["t"] in known else event

    def joined_since(self, state: SavedState) -> dict[str, int]:
        """Return the number of samples of each client that joined after `state`, before the next round, by the log."""
        head = head_in(checkpoint.load(state.path)[1], state.path)
        joined = [event for event in read_events(self.path, head.lines) if event["event"] == JOINED]
        return {event["client"]: event["samples"] for event in joined if event.get("t") == state.rounds}

    def write_metrics(self, history: Sequence[Mapping[str, float]]) -> None:
        """Write the metrics in `history`, one row per round, to the metrics file."""
        table = metrics_table([dict(row) for row in history])
        write_atomically(self.path / METRICS, lambda path: pq.write_table(table, path))

    def finish(self, server: FederatedServer, log: LogHead) -> str:
        """Write the model and the result, with the head of the log so far; return the SHA-256 of the model's file."""
        if server.spent:  # an older checkpoint of private rounds reveals the key of the noise in the final model
            checkpoint.retire(RunDirectory(self.path).state, server.t, 1)
        file = self.path / MODEL
        write_atomically(file, lambda path: save_model(path, server.model))
        digest = digest_of(file)
        result = {"rounds": server.t, "clients": server.names, "model_sha256": digest, "last_round": server.history[-1],
                  HEAD: asdict(log)}  # fmt: skip
        result |= {"privacy": server.spent} if server.spent else {}
        self.checksums.write(RESULT, lambda path: path.write_bytes(f"{json.dumps(result, indent=2)}\n".encode()))
        return digest

    def roll_back(self, rounds: int) -> list[str]:
        """Return to the checkpoint after `rounds` rounds; rename later checkpoints, result and model.

        Returns the new names. If the process is killed, this method can be called again. Raises InputError if there is
        no federation, if a process is writing to it, or if the checkpoint after `rounds` rounds is missing.
        """
        if not (self.path / STUDY).exists():
            raise InputError(f"{self.path} holds no federation")
        with RunDirectory(self.path).writing():
            states = self.states
            if rounds not in states:
                kept = ", ".join(map(str, states)) or "none"
                raise InputError(f"{self.path} has no state after {rounds} rounds; kept: {kept}")
            history = _read_history(states[rounds])
            later = [path for number, path in reversed(states.items()) if number > rounds]
            # In this order: model and result must not be there without the checkpoint that they come from.
            aside = self._set_aside([self.path / RESULT, self.path / MODEL, self.path / CLIENTS, *later])
            self.checksums.remove(RESULT)
            self.write_metrics(history)
            EventLog(self.path).append("rolled back", done=rounds, set_aside=aside)
        return aside

    def _set_aside(self, files: Sequence[Path]) -> list[str]:
        """Rename those of `files` that exist, so that nothing reads them any more; return the new names."""
        stamp, renamed = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f"), []
        for file in files:
            with system_errors(file, "set aside"), suppress(FileNotFoundError):
                aside = file.with_name(f"{file.name}.{stamp}")
                os.rename(file, aside)
                flush_folder(file.parent)  # or after a power failure the earlier files of this list might be back
                renamed.append(str(aside.relative_to(self.path)))
        return renamed


def check(path: Path) -> list[tuple[str, str]]:
    """List the files of a federation's folder, each with a description of what is wrong, or "" if nothing is wrong.

    Each checkpoint is checked on its own, the metrics against the newest undamaged checkpoint, the model against the
    result, and the log by its own hashes and against its heads in checkpoints and the result. If a check fails, all
    files are checked a second time, because a running server may have written only some of them.
    """
    found = _check_once(path)
    if any(problem for _, problem in found):
        sleep(AGAIN_SECONDS)
        found = _check_once(path)
    return found


def _check_once(path: Path) -> list[tuple[str, str]]:
    directory, heads = FederationDirectory(path), dict[str, LogHead]()
    states = directory.states
    checks: dict[str, Callable[[], object]] = {STUDY: directory.spec}
    checks |= {f"checkpoint/{file.name}": partial(_check_state, file, heads) for file in states.values()}
    if states or (path / METRICS).exists():
        checks[METRICS] = lambda: _check_metrics(path)
    if directory.checksums.knows(RESULT):
        checks[RESULT] = lambda: _check_result(path, heads)
    if (path / RESULT).exists():
        checks[MODEL] = lambda: _check_model(path)
    if directory.has_begun or (path / EJECTED).exists():
        checks[EJECTED] = lambda: read_checked(path / EJECTED)
    if (path / CLIENTS).exists():
        checks[CLIENTS] = lambda: read_checked(path / CLIENTS)
    if states or (path / EVENTS).exists():
        checks[EVENTS] = lambda: check_log(path / EVENTS, heads)
    found = []
    for name, run in checks.items():
        try:
            run()
            found.append((name, ""))
        except InputError as error:
            found.append((name, str(error)))
    return found


def log_problem(path: Path, study: str) -> str:
    """Describe what is wrong with a federation's log; return "" if nothing is wrong. study: the study's digest."""
    heads = dict[str, LogHead]()
    for file in FederationDirectory(path).states.values():
        with suppress(InputError):  # a damaged checkpoint has no head
            _check_state(file, heads)
    try:
        if heads or (path / EVENTS).exists():
            check_log(path / EVENTS, heads, study)
        return ""
    except InputError as error:
        return str(error)


def _check_state(file: Path, heads: dict[str, LogHead]) -> None:
    """Check a checkpoint, and put its head of the log into `heads`."""
    _, meta = checkpoint.load(file)
    _history_in(meta, file)
    heads[file.name] = head_in(meta, file)


def _check_result(path: Path, heads: dict[str, LogHead]) -> None:
    """Check the result, unless it is being written, and put its head of the log into `heads`."""
    if not FederationDirectory(path).checksums.check(RESULT).exists():
        return
    _model_digest(path)
    heads[RESULT] = head_in(read_json(path / RESULT), path / RESULT)


def _read_history(file: Path) -> list[dict[str, float]]:
    """Read the history in the checkpoint `file`. Raises InputError if the file is damaged or not of a federation."""
    return _history_in(checkpoint.load(file)[1], file)


def _history_in(meta: Mapping[str, Any], file: Path) -> list[dict[str, float]]:
    """Return the history in the metadata of the checkpoint `file`.

    Raises InputError if the checkpoint is not that of a federation, or if numbers of rounds disagree.
    """
    history, rounds = meta.get("history"), meta.get("t")
    named = checkpoint.round_of(file)
    if not isinstance(history, list) or "members" not in meta.get("settings", {}):
        raise InputError(f"checkpoint {file} is not that of a federation")
    if len(history) != rounds or named not in (None, rounds):
        raise InputError(f"checkpoint {file} is of {rounds} rounds and has {len(history)} in its history")
    return history


def _check_metrics(path: Path) -> None:
    file, state = path / METRICS, FederationDirectory(path).newest()
    with system_errors(file, "read"):
        table: pa.Table = parsed(file, lambda: pq.read_table(file))
    if state is None or not table.equals(metrics_table([dict(row) for row in state.history])):
        raise InputError(f"{file} is not that of the newest state")


def _check_model(path: Path) -> None:
    if digest_of(path / MODEL) != _model_digest(path):
        raise InputError(f"{path / MODEL} is not the one of {RESULT}: its SHA-256 is another")


def _model_digest(path: Path) -> str:
    """Return the SHA-256 of the model according to the result."""
    result = read_json(path / RESULT)
    digest = result.get("model_sha256") if isinstance(result, dict) else None
    if not isinstance(digest, str):
        raise InputError(f"{path / RESULT} does not say the SHA-256 of the model")
    return digest

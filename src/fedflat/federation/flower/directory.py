"""The server's folder of a federation: safe to read at any time, written by one process at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ...core.errors import InputError
from ...experiments.checksums import digest_of
from ...experiments.run_directory import RunDirectory, difference, save_model
from ...experiments.spec import RunSpec
from ...files import flush_folder, parsed, read_json, said_of, write_atomically
from ...rounds import checkpoint
from ...rounds.history import metrics_table
from ..server import FederatedServer
from . import event_log
from .event_log import EventLog
from .study import Study

STUDY, METRICS, MODEL, RESULT = "federated-study.toml", "metrics.parquet", "model.safetensors", "result.json"


@dataclass(frozen=True)
class State:
    """What the server had after so many rounds, in a file that is whole."""

    rounds: int
    path: Path
    history: Sequence[dict[str, float]]
    damaged: tuple[str, ...] = ()  # what is wrong with newer files, a line each


@dataclass(frozen=True)
class FederationDirectory:
    """federated-study.toml, events.jsonl, metrics.parquet, checkpoint/ with the last three states and, at the end,
    model.safetensors and result.json. What tells the truth is the state; metrics are made of it."""

    path: Path

    @property
    def states(self) -> dict[int, Path]:
        """The files of states by their rounds, oldest first, whole or not."""
        files = RunDirectory(self.path).checkpoints
        return {checkpoint.round_of(path) or 0: path for path in files}

    def newest(self) -> State | None:
        """The newest state whose file is whole; None if there is no state.

        Raises InputError if there are files of states, and none is whole.
        """
        damaged: list[str] = []
        for rounds, path in reversed(self.states.items()):
            try:
                return State(rounds, path, _history(path), tuple(damaged))
            except InputError as error:
                damaged.append(str(error))
        if damaged:
            raise InputError(damaged[0] + (f" (nor can {len(damaged) - 1} older)" if damaged[1:] else ""))
        return None

    def refuse_other(self, study: Study) -> None:
        """Raise InputError if the folder holds something else than a federation of `study`; nothing is touched."""
        if RunDirectory(self.path).has_begun:
            raise InputError(f"out {self.path} holds a run; choose another folder for a federation")
        file = self.path / STUDY
        found = difference(RunSpec.load(file).decisive(), study.spec.decisive()) if file.exists() else None
        if found:
            raise InputError(f"out {self.path} holds another federation: {found}")

    @contextmanager
    def writing(self, study: Study) -> Iterator[None]:
        """The folder made and locked. Raises InputError if it cannot be written, is being written, or holds something
        else."""
        self.refuse_other(study)
        with RunDirectory(self.path).writing():
            self.refuse_other(study)
            write_atomically(self.path / STUDY, lambda path: path.write_text(study.spec.to_toml()))
            yield

    def save(self, coordinator: FederatedServer) -> None:
        """Write the state, and metrics of it; older states than the last three go once the new one is safe."""
        folder = RunDirectory(self.path).state
        coordinator.save(checkpoint.path_of(folder, coordinator.t))
        self.write_metrics(coordinator.history)
        checkpoint.retire(folder, coordinator.t)

    def write_metrics(self, history: Sequence[Mapping[str, float]]) -> None:
        """Write the metrics of a state's history."""
        table = metrics_table([dict(row) for row in history])
        write_atomically(self.path / METRICS, lambda path: pq.write_table(table, path))

    def finish(self, coordinator: FederatedServer) -> str:
        """Write the model, and what there is to say of it; gives the SHA-256 of the model's file."""
        file = self.path / MODEL
        write_atomically(file, lambda path: save_model(path, coordinator.model))
        digest = digest_of(file)
        last = coordinator.history[-1]
        result = {"rounds": coordinator.t, "clients": coordinator.names, "model_sha256": digest, "last_round": last}
        write_atomically(self.path / RESULT, lambda path: path.write_text(json.dumps(result, indent=2) + "\n"))
        return digest

    def roll_back(self, rounds: int) -> list[str]:
        """Go back to the state after so many rounds, if it is among those that are kept; gives the names of the files
        that were set aside, under other names.

        Started again after it was killed, it goes on. Raises InputError if there is no federation, if it is being
        written, or if that state is not kept.
        """
        if not (self.path / STUDY).exists():
            raise InputError(f"{self.path} holds no federation")
        with RunDirectory(self.path).writing():
            states = self.states
            if rounds not in states:
                raise InputError(f"{self.path} has no state after {rounds} rounds; {_kept(list(states))}")
            history = _history(states[rounds])
            later = [path for number, path in reversed(states.items()) if number > rounds]
            # What follows from states first: it must not be there beside an older one.
            aside = self._set_aside([self.path / RESULT, self.path / MODEL, *later])
            self.write_metrics(history)
            EventLog(self.path).tell("rolled back", done=rounds, set_aside=aside)
        return aside

    def _set_aside(self, files: Sequence[Path]) -> list[str]:
        """Rename what is there of `files`, so that it no longer counts; gives the new names."""
        stamp, named = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f"), []
        for file in files:
            with said_of(file, "set aside"), suppress(FileNotFoundError):
                aside = file.with_name(f"{file.name}.{stamp}")
                os.rename(file, aside)
                flush_folder(file.parent)  # or a later state may be back, or a result without it, when power fails
                named.append(str(aside.relative_to(self.path)))
        return named


def check(path: Path) -> list[tuple[str, str]]:
    """What is in a federation's folder: the names of its files, each with "" if it is whole, else with what is wrong.

    States are checked by themselves, metrics against the newest that is whole, the model against result.json.
    """
    folder = FederationDirectory(path)
    found = [(STUDY, _told(lambda: RunSpec.load(path / STUDY)))]
    found += [(f"checkpoint/{file.name}", _told(partial(_history, file))) for file in folder.states.values()]
    if folder.states or (path / METRICS).exists():
        found.append((METRICS, _told(lambda: _check_metrics(folder))))
    if (path / RESULT).exists():
        found.append((RESULT, _told(lambda: _result(path))))
        found.append((MODEL, _told(lambda: _check_model(path))))
    if (path / event_log.FILE).exists():
        found.append((event_log.FILE, _told(lambda: _check_events(path))))
    return found


def _told(look: Callable[[], object]) -> str:
    """What a look says is wrong, or ""."""
    try:
        look()
    except InputError as error:
        return str(error)
    return ""


def _history(file: Path) -> list[dict[str, float]]:
    """The history in the file of a state. Raises InputError unless it is whole, of a federation, and of its round."""
    _, meta = checkpoint.load(file)
    history, rounds = meta.get("history"), meta.get("t")
    named = checkpoint.round_of(file)
    if not isinstance(history, list) or "members" not in meta.get("settings", {}):
        raise InputError(f"checkpoint {file} is not that of a federation")
    if len(history) != rounds or named not in (None, rounds):
        raise InputError(f"checkpoint {file} is of {rounds} rounds and has {len(history)} in its history")
    return history


def _check_metrics(folder: FederationDirectory) -> None:
    file, state = folder.path / METRICS, folder.newest()
    with said_of(file, "read"):
        table: pa.Table = parsed(file, lambda: pq.read_table(file))
    if state is None or not table.equals(metrics_table([dict(row) for row in state.history])):
        raise InputError(f"{file} is not that of the newest state")


def _result(path: Path) -> str:
    """The SHA-256 that result.json gives of the model."""
    result = read_json(path / RESULT)
    digest = result.get("model_sha256") if isinstance(result, dict) else None
    if not isinstance(digest, str):
        raise InputError(f"{path / RESULT} does not say the SHA-256 of the model")
    return digest


def _check_model(path: Path) -> None:
    if digest_of(path / MODEL) != _result(path):
        raise InputError(f"{path / MODEL} is not the one of {RESULT}: its SHA-256 is another")


def _check_events(path: Path) -> None:
    """Every line is an event, but for those that were being written when a machine stopped."""
    file = path / event_log.FILE
    with said_of(file, "read"), file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            torn = line.startswith(b"{") and not line.endswith(b"}\n")
            if not torn and not _is_event(line):
                raise InputError(f"{file}: line {number} is not an event")


def _is_event(line: bytes) -> bool:
    with suppress(ValueError, RecursionError):
        event = json.loads(line)
        return isinstance(event, dict) and {"time", "event"} <= event.keys()
    return False


def _kept(rounds: Sequence[int]) -> str:
    """The states that are kept, in words."""
    *most, last = map(str, rounds or [0])
    return f"kept are those after {', '.join(most)} and {last}" if most else (
        f"kept is that after {last}" if rounds else "none is kept")  # fmt: skip

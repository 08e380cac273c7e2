"""Runs that stop at any of their file operations, and disks that fill up or lose what nobody asked them to keep.

`python -m support.durability MODE STORE RANKS EVERY FOLDER` tries every `EVERY`th point and prints a line of JSON for
each: what is wrong after the run has gone on, or with what `fedflat verify` says before that, or null. It is a process
of its own because it forks.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from fedflat.cli.results import verdicts
from fedflat.core.errors import InputError
from fedflat.engine import slot_file
from fedflat.engine.ranks import RankError, joined
from fedflat.experiments import runner, studies, tuning
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.experiments.tracking import TrackingObserver
from fedflat.experiments.tuning_spec import TuningSpec
from fedflat.rounds import checkpoint

TESTS = Path(__file__).parent.parent
OPERATIONS = ("open", "fsync", "replace", "unlink", "mkdir", "chmod", "ftruncate", "pwrite", "pwritev")
TRACKED = ("metrics.csv", "summary.csv", "tracking.json")  # which have seconds
PATIENCE = 30.0  # seconds that a rank waits for one that was killed


def spec(store: str) -> RunSpec:
    """Four rounds of Scaffold on the digits, a checkpoint after each, records in memory or in a file."""
    return RunSpec(
        data={"name": "digits", "clients": 6}, model={"name": "mlp", "options": {"hidden": [4]}}, participation=3,
        client={"lr": 0.1, "steps": 2, "batch_size": 10}, rounds=5, checkpoint_every=1, method="scaffold",
        executor="sequential", workers=1, flatness=[], store_megabytes={"memory": 2048, "file": 0}[store],
    )  # fmt: skip


# --- the disk ---------------------------------------------------------------------------------------------------------


class Operations:
    """Counts the operations on files below a folder, and calls `at` before, or for a write in the middle of, one."""

    def __init__(self, folder: Path, number: int | None, act: Callable[[], None]) -> None:
        self.done, self._folder, self._number, self._act = 0, str(folder), number, act
        for name in OPERATIONS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        slot_file._flush = self._watched("fdatasync", slot_file._flush)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if not self._counts(name, arguments):
                return function(*arguments, **named)
            self.done += 1
            if self.done - 1 == self._number:
                if name in ("pwrite", "pwritev") and arguments[2]:  # the header is one sector, and written whole
                    some = arguments[1][0] if name == "pwritev" else arguments[1]
                    os.lseek(arguments[0], arguments[2], os.SEEK_SET)
                    os.write(arguments[0], bytes(some)[: len(some) // 2])
                self._act()
            return function(*arguments, **named)

        return watched

    def _counts(self, name: str, arguments: tuple[Any, ...]) -> bool:
        if name == "open" and not arguments[1] & os.O_CREAT:
            return False
        return path_of(arguments[0]).startswith(self._folder)


def path_of(file: Any) -> str:
    """The path that a call is about, of an open file too."""
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else os.path.abspath(os.fspath(file))


class Log:
    """What reached the disk and what was only asked for, in the order of the calls."""

    def __init__(self, folder: Path) -> None:
        self.events: list[tuple[Any, ...]] = []
        self._folder = str(folder)
        for name in OPERATIONS:
            setattr(os, name, self._logged(name, getattr(os, name)))
        slot_file._flush = self._logged("fdatasync", slot_file._flush)

    def _logged(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def logged(*arguments: Any, **named: Any) -> Any:
            path = path_of(arguments[0])
            there = os.path.lexists(path)
            found = function(*arguments, **named)
            if path.startswith(self._folder):
                self.events += self._events(name, path, there, arguments)
            return found

        return logged

    def _events(self, name: str, path: str, there: bool, arguments: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if name == "open" and arguments[1] & os.O_CREAT and not there:
            yield "create", path
        elif name in ("pwrite", "pwritev"):
            yield "write", path, arguments[2], bytes(arguments[1][0] if name == "pwritev" else arguments[1])
        elif name == "ftruncate":
            yield "truncate", path
        elif name in ("fsync", "fdatasync"):
            is_folder = stat.S_ISDIR(os.fstat(arguments[0]).st_mode)
            yield ("folder", path) if is_folder else ("flush", path, Path(path).read_bytes())
        elif name == "replace":
            yield "rename", path, path_of(arguments[1])
        elif name in ("unlink", "mkdir"):
            yield name, path

    def left(self, number: int, rng: np.random.Generator, folder: Path, target: Path) -> None:
        """`folder` in `target`, as a power failure after so many events may leave it: of what was not flushed each
        write and each new, moved or removed name may be there or not."""
        content: dict[str, bytearray] = {}  # by inode, which has the name that it was made with
        pending: dict[str, list[tuple[int, bytes]]] = {}
        durable: dict[str, str] = {}  # name -> inode, as on disk
        now: dict[str, str] = {}  # as the process sees it
        open_names: list[tuple[str, ...]] = []  # changes of names that no flush of their folder has followed
        for count, (kind, path, *more) in enumerate(self.events[:number]):
            if kind == "create":
                inode = str(count)
                content[inode], pending[inode], now[path] = bytearray(), [], inode
                open_names.append(("name", path, inode))
            elif kind == "write":
                pending[now[path]].append((more[0], more[1]))
            elif kind == "truncate":
                content[now[path]].clear()
                pending[now[path]].clear()
            elif kind == "flush":
                content[now[path]] = bytearray(more[0])
                pending[now[path]] = []
            elif kind == "rename":
                now[more[0]] = now.pop(path)
                open_names += [("rename", path, more[0], now[more[0]])]
            elif kind == "unlink":
                now.pop(path, None)
                open_names.append(("gone", path))
            elif kind == "folder":
                still = []
                for change in open_names:
                    if os.path.dirname(change[1]) == path:
                        applied(durable, change)
                    else:
                        still.append(change)
                open_names = still
        for change in open_names:
            if rng.random() < 0.5:
                applied(durable, change)
        for path, inode in durable.items():
            found = bytearray(content[inode])
            for place, some in pending[inode]:
                if rng.random() < 0.5:
                    found.extend(b"\0" * max(0, place + len(some) - len(found)))
                    found[place : place + len(some)] = some
            file = target / Path(path).relative_to(folder)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(found)


def applied(names: dict[str, str], change: tuple[str, ...]) -> None:
    """A change of names has reached the disk."""
    kind, path, *more = change
    if kind == "name":
        names[path] = more[0]
    elif kind == "rename":
        names.pop(path, None)
        names[more[0]] = more[1]
    else:
        names.pop(path, None)


# --- runs -------------------------------------------------------------------------------------------------------------


def forked(work: Callable[[], None]) -> int:
    """Do `work` in a process of its own; its exit status, negative for a signal, 4 for a rank that lost the others."""
    return os.waitstatus_to_exitcode(os.waitpid(started_as(work), 0)[1])


def started_as(work: Callable[[], None]) -> int:
    """The number of a new process that does `work`."""
    number = os.fork()
    if number:
        return number
    try:
        work()
    except RankError:
        os._exit(4)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(3)
    os._exit(0)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full() -> None:
    raise OSError(28, "No space left on device")


def carry_out(
    store: str, ranks: int, folder: Path, around: Callable[[], Callable[[], None]] = lambda: nothing
) -> list[int]:
    """The run in `folder`, by so many ranks, or by a process that is none; the exit status of each.

    The first does `around` before, and what that gives after.
    """

    def first(work: Callable[[], None]) -> None:
        after = around()
        work()
        after()

    if ranks == 0:
        return [forked(lambda: first(lambda: run(store, folder)))]
    port = free_port()
    started = [
        started_as(partial(as_rank, store, ranks, rank, port, folder, first if rank == 0 else lambda work: work()))
        for rank in range(ranks)
    ]
    return [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in started]


def nothing() -> None: ...


def run(store: str, folder: Path) -> None:
    """A run with its records in such a store, or a search, or a study with a CSV tracker."""
    if store == "search":
        tune = {"configurations": 2, "rounds": [1, 2], "one_in": 2, "seeds": [5], "box": {"client.lr": [0.3]}}
        tuning.tune(TuningSpec(**settings(methods=["scaffold"], validation=0.2, tune=tune)), folder)
    elif store == "study":
        with TrackingObserver(["csv"], folder, lambda one: studies.run_directory(one, folder)) as tracked:
            studies.carry_out_study(StudySpec(**settings(methods=["scaffold"], rounds=3, flatness=[])), folder, tracked)
    else:
        runner.run(spec(store), folder)


def settings(validation: float = 0.0, **changes: Any) -> dict[str, Any]:
    """Those of a small study or search."""
    return {
        "data": {"name": "digits", "clients": 3, "validation": validation}, "executor": "sequential", "workers": 1,
        "model": {"name": "mlp", "options": {"hidden": [4]}}, "client": {"lr": 0.1, "steps": 2, "batch_size": 10},
        "checkpoint_every": 1, "seeds": [0], **changes,
    }  # fmt: skip


def verified(folder: Path) -> str | None:
    """What `fedflat verify` says is damaged in a folder that a process has left; it need not be one of ours yet."""
    try:
        damaged = [f"{one.path}: {one.problem}" for one in verdicts(folder) if one.problem]
    except InputError:
        return None
    return f"verify says {damaged}" if damaged else None


def as_rank(
    store: str, ranks: int, rank: int, port: int, folder: Path, wrapped: Callable[[Callable[[], None]], None]
) -> None:
    os.environ |= {"RANK": f"{rank}", "WORLD_SIZE": f"{ranks}", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    with joined(PATIENCE) as together:
        wrapped(lambda: ignored(runner.run(spec(store), folder, ranks=together)))


def ignored(_: object) -> None: ...


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# --- what a run leaves ------------------------------------------------------------------------------------------------


def facts(folder: Path) -> dict[str, Any]:
    """All that a finished run has left, file by file, but for seconds, hosts and where in a file a record lies."""
    directory = RunDirectory(folder)
    found: dict[str, Any] = {"damaged": directory.damaged_files()}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in (".lock", ".claim", "env.json", "SHA256SUMS", "clients.slots", *TRACKED):
            found[str(path.relative_to(folder))] = content_of(path)
    return found


def content_of(path: Path) -> Any:
    if path.parent.name == "checkpoint" and path.suffix == ".safetensors":
        return state_of(path)
    if path.suffix == ".parquet":
        return [{k: v for k, v in row.items() if k != "seconds"} for row in pq.read_table(path).to_pylist()]
    if path.name == "summary.json":
        content = json.loads(path.read_text())
        content["summary"].pop("seconds")
        return content
    if path.name == "config.toml":
        lines = path.read_text().splitlines()  # on these two no result depends
        return [line for line in lines if not line.startswith(("store_megabytes", "workers"))]
    return path.read_bytes().hex()


def state_of(path: Path) -> Any:
    """The server's numbers and every client's, by the bits."""
    tensors, meta = checkpoint.load(path)
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in meta.pop("history")]
    places = tensors["clients.slots"].numpy()
    seen = np.flatnonzero(places >= 0)
    if "clients.digests" in tensors:
        rows = tensors["clients.digests"].tolist()
    else:
        records = tensors["clients.c_i"] if "clients.c_i" in tensors else tensors["clients.c"]
        content = records.numpy().view(np.uint8)[places[seen]]
        rows = slot_file.digests_of(np.ascontiguousarray(content)).tolist()
    server = {name: x.numpy().tobytes().hex() for name, x in tensors.items() if name.startswith("server.")}
    return {"meta": meta, "history": history, "clients": dict(zip(seen.tolist(), rows, strict=True)), **server}


def difference(whole: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first file that differs."""
    for name in sorted({*whole, *found}):
        if whole.get(name) != found.get(name):
            return f"{name} differs" if name in whole and name in found else f"{name} is in one of them only"
    return None


# --- trials -----------------------------------------------------------------------------------------------------------


class Trials:
    """One way to go wrong, tried at many points."""

    def __init__(self, store: str, ranks: int, folder: Path) -> None:
        self.store, self.ranks, self.folder = store, ranks, folder
        run(store, folder / "whole")  # in this process, so that those forked from it have what a run imports
        self.whole = facts(folder / "whole")

    def points(self) -> int:
        """How many operations there are."""
        note, folder = self.folder / "count", self.folder / "counted"

        def counting() -> Callable[[], None]:
            operations = Operations(folder, None, killed)
            return lambda: ignored(note.write_text(str(operations.done)))

        assert not any(carry_out(self.store, self.ranks, folder, counting))
        return int(note.read_text())

    def tried(self, number: int, act: Callable[[], None], expected: tuple[int, ...]) -> str | None:
        """Stop at operation `number`, go on, and compare."""
        folder = self.folder / f"{number}"

        def stopping() -> Callable[[], None]:
            Operations(folder, number, act)
            return nothing

        codes = carry_out(self.store, self.ranks, folder, stopping)
        if codes[0] not in expected:
            return f"it ended with {codes}"
        return verified(folder) or self.gone_on(folder, self.ranks)

    def gone_on(self, folder: Path, ranks: int) -> str | None:
        codes = carry_out(self.store, ranks, folder)
        if any(codes):
            return f"going on, it ended with {codes}"
        found = difference(self.whole, facts(folder))
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        return found

    def powerless(self, every: int) -> Iterator[tuple[int, str | None]]:
        """Power fails after every `every`th event of one run, three times with other writes lost."""
        folder, note = self.folder / "logged", self.folder / "log"

        def logging() -> Callable[[], None]:
            log = Log(folder)
            return lambda: ignored(note.write_text(repr(log.events)))

        assert carry_out(self.store, 0, folder, logging) == [0]
        log = object.__new__(Log)
        log.events = ast.literal_eval(note.read_text())
        for number in range(0, len(log.events) + 1, every):
            for seed in range(3):
                target = self.folder / f"{number}"
                target.mkdir()
                log.left(number, np.random.default_rng([seed, number]), folder, target)
                yield number, self.gone_on(target, 0)


def main() -> None:
    """Print a line for every point."""
    mode, store, ranks, every, folder = sys.argv[1:]
    torch.set_num_threads(1)
    trials = Trials(store, int(ranks), Path(folder).resolve())
    if mode == "power":
        for number, problem in trials.powerless(int(every)):
            print(json.dumps([number, problem]), flush=True)
        return
    # Of a full disk a run may not hear, where what fails is only the removal of a file that has gone already.
    act, expected = {"kill": (killed, (-signal.SIGKILL,)), "full": (full, (3, 0))}[mode]
    for number in range(0, trials.points(), int(every)):
        print(json.dumps([number, trials.tried(number, act, expected)]), flush=True)


if __name__ == "__main__":
    main()

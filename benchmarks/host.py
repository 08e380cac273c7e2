"""Where implementations run: in this process, or in another that waits its turn."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from fedflat.core.native_libraries import tune_allocator

from .parts import BenchmarkPart, parts
from .timing import Prepared, Seconds

Answer = TypeVar("Answer")
SPAWN = multiprocessing.get_context("spawn")  # a fresh interpreter: nothing of this process's memory is in the other


class Here:
    """Implementations of this process, of parts by name, prepared when they are first asked for."""

    def __init__(self, parts: Mapping[str, BenchmarkPart]) -> None:
        self._parts = parts
        self._prepared: dict[tuple[str, str], Prepared] = {}

    def facts(self, part: str, name: str) -> dict[str, Any]:
        """Return what the times of an implementation depend on; it is ready afterwards."""
        if (part, name) not in self._prepared:
            self._prepared[part, name] = self._parts[part].implementation(name).prepare()
        return self._prepared[part, name].facts

    def time(self, part: str, name: str) -> Seconds:
        """Return one time of an implementation that is ready."""
        return self._prepared[part, name].time()

    def close(self) -> None:
        """Free what the implementations hold."""
        for prepared in self._prepared.values():
            prepared.close()


class Elsewhere:
    """Implementations of another process, whose allocator is as the system has it.

    The allocator's settings are a whole process's, and glibc's own, which move by themselves, cannot be brought back
    once they were set. It runs only while this process waits for it, so that both can be timed in turns.
    """

    def __init__(self, quick: bool, threads: int) -> None:
        self._connection, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(theirs, quick, threads), daemon=True)
        self._process.start()
        theirs.close()

    def facts(self, part: str, name: str) -> dict[str, Any]:
        """Return as of `Here`."""
        found: dict[str, Any] = self._ask("facts", part, name)
        return found

    def time(self, part: str, name: str) -> Seconds:
        """Return as of `Here`."""
        seconds: Seconds = self._ask("time", part, name)
        return seconds

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join()

    def _ask(self, what: str, part: str, name: str) -> Any:
        self._connection.send((what, part, name))
        try:
            return self._connection.recv()
        except EOFError as error:  # its own message is on the terminal
            raise RuntimeError(f"the process that timed {name} of {part} has ended") from error


def _serve(connection: Connection, quick: bool, threads: int) -> None:
    """Answer until the other end is closed."""
    torch.set_num_threads(threads)
    here = Here(parts(quick))
    while True:
        try:
            what, part, name = connection.recv()
        except EOFError:
            return
        connection.send(getattr(here, what)(part, name))


def in_a_process_of_its_own(function: Callable[..., Answer], *arguments: Any, threads: int = 1) -> Answer:
    """Return what `function`, of a module, gives in a fresh process with the tuned allocator."""
    with ProcessPoolExecutor(1, SPAWN, initializer=_ready, initargs=(threads,)) as pool:
        return pool.submit(function, *arguments).result()


def _ready(threads: int) -> None:
    torch.set_num_threads(threads)
    tune_allocator()

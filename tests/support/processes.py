"""Processes that tests start, wait for and look up, and networks that diverge or end their process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from fedflat.engine.workers import start
from support import fork_server

MARK = 1e3  # the first number of a marked sample, at which the networks below do what tests need
PATIENCE = 120.0  # seconds that a test waits before it fails; machines may be busy


def wait_until(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.01)


def children(process: int) -> list[int]:
    """Return the numbers of the processes that `process` has started and that have not ended, without fork servers."""
    numbers = [number for number in map(int, filter(str.isdigit, os.listdir("/proc"))) if _parent(number) == process]
    return [number for number in numbers if fork_server.__name__.encode() not in _command(number)]


def workers() -> list[int]:
    """The numbers of this process's workers that have not ended; other tests may have started other processes."""
    return [number for number in children(os.getpid()) if start.__file__.encode() in _command(number)]


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def keep_lock(begun: Path) -> None:
    """Make the file `begun`, then compute for hours without letting another thread of Python run."""
    begun.touch()
    sum(range(10**12))


def has_ended(process: int) -> bool:
    """Whether there is no such process, or a zombie."""
    return _parent(process) is None


def maps(process: int) -> str:
    """The memory map of a process."""
    return Path(f"/proc/{process}/maps").read_text()


def _parent(process: int) -> int | None:
    try:
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(parent)


class DivergingNetwork(nn.Module):
    """A tanh network of six features and three classes that gives NaN for marked samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) + torch.where(x[..., :1] == MARK, torch.nan, 0.0)


class KillingNetwork(DivergingNetwork):
    """Kills the process that trains it at a marked sample, `times` in all, but never the process that made it."""

    def __init__(self, folder: Path, times: int, number: int = signal.SIGKILL) -> None:
        """number: of the signal; SIGSTOP suspends the process instead."""
        super().__init__()
        self.folder, self.times, self.number, self.maker = folder, times, number, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.maker and (x[..., 0] == MARK).any() and len(list(self.folder.iterdir())) < self.times:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), self.number)
        return self.layers(x)

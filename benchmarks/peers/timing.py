"""Seconds of rounds, and how many local steps they had."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from torch.optim import SGD, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class Laps:
    """The seconds of every round, of the processor and by the clock; the first round is a warm-up.

    In the first round, which is not timed, steps of SGD are counted.
    """

    def __init__(self, processor: Callable[[], float] = process_time, server: Optimizer | None = None) -> None:
        """Count the steps of all optimisers but `server`; `processor` returns seconds of the processor."""
        self.steps = 0
        self._processor, self._server = processor, server
        self._laps: list[tuple[float, float]] = []
        self._hook = register_optimizer_step_post_hook(self._count)
        self.begin()

    @property
    def rounds(self) -> int:
        """How many have ended, the warm-up among them."""
        return len(self._laps)

    def begin(self) -> None:
        """Note that a round begins, later than the one before ended."""
        self._begun = self._processor(), perf_counter()

    def end(self) -> None:
        """Note that a round has ended and the next one begins."""
        processor, clock = self._begun
        self.begin()
        self._laps.append((self._begun[0] - processor, self._begun[1] - clock))
        self._hook.remove()

    def seconds(self, rounds: int) -> tuple[list[float], list[float]]:
        """Return seconds of the processor and by the clock: means of every `rounds` rounds after the first."""
        processor, clock = zip(*self._laps[1:], strict=True)
        return _means(processor, rounds), _means(clock, rounds)

    def _count(self, optimizer: Optimizer, *_: Any) -> None:
        if isinstance(optimizer, SGD) and optimizer is not self._server:
            self.steps += 1


def _means(values: Sequence[float], rounds: int) -> list[float]:
    return [sum(values[i : i + rounds]) / rounds for i in range(0, len(values), rounds)]


def family_time() -> float:
    """Return processor seconds of this process and of all that it has started, in steps of 0.01; Linux only."""
    seconds: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            children.setdefault(int(fields[1]), []).append(number)
            seconds[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = [os.getpid()]
    for number in family:
        family += children.get(number, [])
    return sum(seconds[number] for number in family)

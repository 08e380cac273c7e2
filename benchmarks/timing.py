"""Seconds, of the processor and by the clock, taken in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any

import torch

Seconds = tuple[float, float]  # of the processor, by the clock
Progress = Callable[[str, int, int], None]  # what is timed, how many times are taken, how many there will be


@dataclass(frozen=True)
class Prepared:
    """Something that is ready to be timed."""

    run: Callable[[], object]
    share: float = 1.0  # how much of what is reported (a round, a step) one run is; times are divided by it
    facts: dict[str, Any] = field(default_factory=dict)  # what the times depend on, JSON-able
    close: Callable[[], object] = lambda: None  # frees what it holds

    def time(self) -> Seconds:
        """Return seconds for one of what is reported."""
        clock, processor = perf_counter(), process_time()
        self.run()
        return (process_time() - processor) / self.share, (perf_counter() - clock) / self.share


def wait_for(device: str) -> None:
    """Wait until a GPU has done everything that it was given; on the CPU all is done when a call returns."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def no_progress(name: str, done: int, total: int) -> None:
    """Report nothing."""


def in_turns(
    timers: Mapping[str, Callable[[], Seconds]], repeats: int, warm_ups: int = 2, told: Progress = no_progress
) -> dict[str, list[Seconds]]:
    """Return `repeats` times of each timer, A B C A B C, so that a machine that slows down slows down everybody.

    Before them everybody runs `warm_ups` times, untimed: caches, compilers and allocators settle.
    """
    times: dict[str, list[Seconds]] = {name: [] for name in timers}
    for turn in range(-warm_ups, repeats):
        for name, timer in timers.items():
            told(name, turn + warm_ups, repeats + warm_ups)
            seconds = timer()
            if turn >= 0:
                times[name].append(seconds)
    return times

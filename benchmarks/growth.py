"""How the cost of a round grows: with clients, cohort, model, local steps and workers, one at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from .host import in_a_process_of_its_own
from .implementations import Ours
from .measurement import Spread
from .peak_memory import Peak
from .results import Settings
from .timing import Progress, in_turns, no_progress
from .workloads import DIGITS, LENET, Workload

POOL = 10_000  # distinct samples, however many clients share them

BASE = replace(DIGITS, clients=1000, pool=POOL, cohort=100, timed=100, rounds=1)
SMALL_COHORT = replace(BASE, cohort=10, timed=10)
CONVOLUTIONAL = replace(LENET, steps=2, timed=10)


@dataclass(frozen=True)
class Point:
    """One setting to be measured."""

    axis: str  # what grows
    value: int
    method: str
    work: Workload
    workers: int = 1

    @property
    def label(self) -> str:
        """In words, for whoever waits."""
        return f"{self.method}, {self.axis} {self.value:,}"


@dataclass(frozen=True)
class Cost:
    """What one point cost."""

    axis: str
    value: int
    method: str
    cpu: Spread | None  # processor seconds of a round; None with workers, which are other processes
    wall: Spread  # seconds of a round by the clock
    setup: float  # seconds by the clock until the first round may start
    peak: int | None  # bytes at the peak, above the imports
    executor: str

    @classmethod
    def of(cls, content: dict[str, Any]) -> Cost:
        """Return the cost from what `dataclasses.asdict` gave."""
        spreads = {name: Spread(**content[name]) if content[name] else None for name in ("cpu", "wall")}
        return cls(**content | spreads)


def points(quick: bool) -> list[Point]:
    """Return all points; of every axis the largest are left out if it is to be quick."""
    axes = [
        *(_axis("clients in all", method, {n: replace(BASE, clients=n) for n in (10**2, 10**3, 10**4, 10**5, 10**6)})
          for method in ("FedAvg", "Scaffold")),
        _axis("clients per round", "FedAvg", {n: _cohort(n) for n in (1, 10, 100, 1000, 10_000)}),
        _axis("parameters", "FedAvg", {75 * h + 10: _hidden(h) for h in (13, 133, 1333, 13_333, 133_333)}),
        _axis("local steps", "FedAvg", {n: replace(SMALL_COHORT, steps=n) for n in (1, 10, 100, 1000)}),
        [Point("workers", n, "FedAvg", CONVOLUTIONAL, n) for n in (1, 2)],
    ]  # fmt: skip
    return [point for axis in axes for point in (axis[:2] if quick else axis)]


def _axis(axis: str, method: str, workloads: dict[int, Workload]) -> list[Point]:
    return [Point(axis, value, method, work) for value, work in workloads.items()]


def _cohort(clients: int) -> Workload:
    return replace(BASE, clients=20_000, cohort=clients, timed=clients)


def _hidden(width: int) -> Workload:
    """Return an MLP 64-width-10, which has 75 width + 10 parameters."""
    return replace(SMALL_COHORT, options={"hidden": (width,)})


def measure(settings: Settings, told: Progress = no_progress) -> list[Cost]:
    """Return the cost of every point, each in a process of its own."""
    every = points(settings.quick)
    found = []
    for number, point in enumerate(every):
        told(point.label, number, len(every))
        found.append(in_a_process_of_its_own(cost, point, settings.repeats, threads=settings.threads))
    return found


def cost(point: Point, repeats: int) -> Cost:
    """Return seconds and memory of one point; to be called in a process of its own."""
    peak = Peak()
    begin = perf_counter()
    prepared = Ours(point.work, point.method, workers=point.workers).prepare()
    setup = perf_counter() - begin
    cpu, wall = zip(*in_turns({"": prepared.time}, repeats)[""], strict=True)
    memory = peak.bytes()
    prepared.close()
    alone = point.workers == 1
    return Cost(point.axis, point.value, point.method, Spread.of(cpu) if alone else None, Spread.of(wall), setup,
                memory, prepared.facts["executor"])  # fmt: skip

"""What was measured, by name, and the figures that are made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

Kind = Literal["cpu", "wall", "bytes"]


@dataclass(frozen=True)
class Measurement:
    """All times of one implementation, or peaks of memory; what was not taken is empty."""

    part: str  # "W1", ...
    name: str  # "FedAvg", "bare-best", "Flower FedAvg", ...
    cpu: list[float] = field(default_factory=list)  # processor seconds for one of `per`
    wall: list[float] = field(default_factory=list)  # seconds by the clock
    bytes: list[float] = field(default_factory=list)
    per: str = "round"
    facts: dict[str, Any] = field(default_factory=dict)  # what they depend on
    alone: bool = False  # not taken in turns with the others of its part

    def values(self, kind: Kind) -> list[float]:
        """Return the processor seconds, the seconds by the clock, or the bytes."""
        values: list[float] = getattr(self, kind)
        return values


@dataclass(frozen=True)
class Spread:
    """Several values of one quantity."""

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return median, least and most."""
        return cls(median(values), min(values), max(values), len(values))

    def times(self, factor: float) -> Spread:
        """Return the same in other units; `factor` is positive."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.n)


def ratio(over: Measurement, under: Measurement, kind: Kind) -> Spread | None:
    """Return the ratio of medians, with the least and most ratio of single values; None where values are missing.

    Values that were taken in turns are divided turn by turn; of others, any two.
    """
    a, b = over.values(kind), under.values(kind)
    if not a or not b:
        return None
    if over.part == under.part and len(a) == len(b) and not over.alone and not under.alone:
        single = [x / y for x, y in zip(a, b, strict=True)]
        return Spread(median(a) / median(b), min(single), max(single), len(single))
    return Spread(median(a) / median(b), min(a) / max(b), max(a) / min(b), min(len(a), len(b)))


class Measurements:
    """Measurements by part and name."""

    def __init__(self, every: Sequence[Measurement]) -> None:
        self._every = {(one.part, one.name): one for one in every}

    def __iter__(self) -> Any:
        return iter(self._every.values())

    def find(self, part: str, name: str) -> Measurement | None:
        """Return the one of this name, if it was taken."""
        return self._every.get((part, name))

    def of(self, part: str) -> list[Measurement]:
        """Return all of a part, in the order they were taken."""
        return [one for one in self if one.part == part]

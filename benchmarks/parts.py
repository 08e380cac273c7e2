"""The parts of the benchmark: workloads with their implementations, and what is timed by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedflat.core.errors import InputError

from .augmentation import Augmented
from .implementations import Implementation, implementations
from .record_store import PART as STORE
from .vectors import vector_contestants
from .workloads import Workload, workloads


@dataclass(frozen=True)
class BenchmarkPart:
    """Implementations that take turns."""

    name: str
    implementations: list[Implementation]
    settings: dict[str, Any] = field(default_factory=dict)  # what everybody does, JSON-able

    def implementation(self, name: str) -> Implementation:
        """Return the implementation of this name, which there is."""
        return next(one for one in self.implementations if one.name == name)


def parts(quick: bool) -> dict[str, BenchmarkPart]:
    """Return every part whose implementations take turns, by name."""
    known = workloads(quick)
    raced = {name: BenchmarkPart(name, implementations(name, work), work.settings()) for name, work in known.items()}
    for name in ("W1", "W4"):
        raced[f"{name} vectors"] = _vectors(f"{name} vectors", known[name])
    raced["augmentation"] = BenchmarkPart("augmentation", [Augmented(known["W1a"])])
    return raced


def _vectors(name: str, work: Workload) -> BenchmarkPart:
    return BenchmarkPart(name, vector_contestants(work), {"model": work.model})


def part_names() -> list[str]:
    """Return all parts in the order in which they are measured."""
    return [*parts(quick=False), STORE]


def chosen(names: Sequence[str]) -> list[str]:
    """Return the parts called `names`, all if there are none. Raises InputError for an unknown one."""
    known = part_names()
    for name in names:
        if name not in known:
            raise InputError(f"there is no part {name!r} of the benchmark; known are {', '.join(known)}")
    return [name for name in known if name in names or not names]

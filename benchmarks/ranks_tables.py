"""What ranks cost and gain, as tables."""

from __future__ import annotations

from typing import Any

from .measurement import Spread
from .tables import Table, seconds


def rounds_table(content: dict[str, Any]) -> Table:
    """Seconds of a round for everybody in `benchmarks/ranks.py`, and their ratio to those of one process."""
    found = {name: Spread.of(times) for name, times in content["rounds"].items()}
    whole = found["one process"].median
    rows = [(name, seconds(spread), f"{whole / spread.median:.2f}") for name, spread in found.items()]
    return Table(("who", "a round of W1 by the clock", "times as fast as one process"), rows)


def aggregation_table(content: dict[str, Any]) -> Table:
    """Seconds of exact and plain sums of eight clients' vectors."""
    return Table(
        ("parameters", "ranks", "exact sum", "plain sum, single precision", "ratio"),
        [_sums(case) for case in content["aggregation"]],
    )


def _sums(case: dict[str, Any]) -> tuple[str, ...]:
    exact, plain = Spread.of(case["exact"]), Spread.of(case["plain"])
    ratio = f"{exact.median / plain.median:.1f}"
    return f"{case['size']:,}", str(case["ranks"]), seconds(exact), seconds(plain), ratio

"""Tables of the results of `benchmarks/secure_sum.py`."""

from __future__ import annotations

from typing import Any

from .measurement import Spread
from .tables import Table, seconds

MEGABYTE = 10**6


def sums_table(content: dict[str, Any]) -> Table:
    """Processor seconds and bytes of a sum, for several numbers of clients."""
    rows = []
    for name, found in content["sums"].items():
        times = (seconds(Spread.of([one[who] for one in found])) for who in ("client_seconds", "server_seconds"))
        sent, received, plain = (_largest(found, what) for what in ("sent_bytes", "received_bytes", "plain_bytes"))
        sizes = f"{sent / MEGABYTE:.1f} MB", f"{plain / MEGABYTE:.1f} MB", f"{received / 1000:.1f} kB"
        rows.append((name, *times, *sizes))
    titles = ("a round of", "a client", "the server", "a client sends", "without", "it gets besides the model")
    return Table(titles, rows)


def rounds_table(content: dict[str, Any]) -> Table:
    """Seconds of rounds over the network, with and without."""
    rows = [(f"{which} `secure-sum`", seconds(Spread.of(case["seconds"]))) for which, case in content["rounds"].items()]
    return Table(("", "a round"), rows)


def _largest(found: list[dict[str, float]], what: str) -> float:
    return max(one[what] for one in found)

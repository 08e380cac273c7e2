"""What every round has reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def metrics_table(history: list[dict[str, float]]) -> pa.Table:
    """One row per round, one column per metric."""
    import pyarrow as pa  # a part of a second; the command line starts without it

    columns = dict.fromkeys(name for row in history for name in row)
    return pa.table({name: [row.get(name) for row in history] for name in columns})

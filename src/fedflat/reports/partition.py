"""A split described: its numbers, a map on a terminal, and a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..data.federated import FederatedData
from ..data.partition_statistics import partition_statistics
from ..data.types import Index
from ..files import make_folder, write_atomically

SHADES = " ░▒▓█"


def description(data: FederatedData) -> list[str]:
    """What the split is, and its numbers, as lines."""
    return [f"{data.name}, {data.partition}, hash {data.partition_hash()}", *partition_statistics(data).lines()]


def shade_map(counts: Index, width: int) -> list[str]:
    """Lines: classes down, clients across, darker for more samples; as many clients as fit in `width` characters."""
    shown = counts[: max(1, width - 10)]
    levels = np.ceil(shown / max(1, shown.max()) * (len(SHADES) - 1)).astype(int)
    rows = [f"class {c:>2}  " + "".join(SHADES[level] for level in column) for c, column in enumerate(levels.T)]
    left_out = f" (first {len(shown)} of {len(counts)})" if len(shown) < len(counts) else ""
    return [*rows, f"clients from left to right{left_out}; █ is {shown.max()} samples"]


def write_partition_map(data: FederatedData, path: Path) -> Path:
    """Write the heat map as SVG. Raises InputError if the file cannot be written."""
    from .figures import partition_map  # here, because drawing needs matplotlib

    svg = partition_map(data.counts(), f"{data.name}, {data.partition}")
    write_atomically(path, lambda file: file.write_text(svg))
    return path


def write_partition(data: FederatedData, lines: list[str], folder: Path) -> Path:
    """Write the lines to facts.txt and the heat map to partition.svg in `folder`; gives the path of the map."""
    make_folder(folder)
    write_atomically(folder / "facts.txt", lambda file: file.write_text("\n".join([*lines, ""])))
    return write_partition_map(data, folder / "partition.svg")

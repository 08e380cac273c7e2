"""What a paper prints, as text."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterable
from math import inf

from ..experiments.recipe import Number, Published
from ..methods import plain
from .comparison_data import Row


def number_text(value: Number, numbers: Published) -> str:
    """A mean, or a mean and its spread.

    TOML reads 76.00 as 76, so numbers in per cent, or up to a percentage, get the most decimals of their block.
    """
    if not numbers.quantity.endswith("%"):
        return " ± ".join(f"{part:.10g}" for part in _parts(value))
    printed = [f"{part:.10g}" for one in numbers.values_by_method.values() for part in _parts(one)]
    decimals = max(len(text.partition(".")[2]) for text in printed)
    return " ± ".join(f"{part:.{decimals}f}" for part in _parts(value))


def _parts(value: Number) -> list[float]:
    return value if isinstance(value, list) else [value]


def line_of(numbers: Published) -> str:
    """All numbers of one block on one line: where they are printed, for which cells, of what, and what contradicts."""
    cells = ",".join(numbers.cell) or "all cells"
    over = "mean over the cells of " if numbers.mean_over_cells else ""
    values = [f"{label} {number_text(value, numbers)}" for label, value in numbers.values_by_method.items()]
    values += [f"{label} {reason}" for label, reason in numbers.absent.items()]
    warning = f" ({numbers.warning})" if numbers.warning else ""
    return f"paper, {numbers.where}, {over}{cells}, {numbers.quantity}: {', '.join(values)}{warning}"


def value_for(row: Row, numbers: Published) -> Number | None:
    """The paper's number for the method of `row`; None if it prints none."""
    label = _label_for(row, numbers.values_by_method)
    return None if label is None else numbers.values_by_method[label]


def text_for(row: Row, numbers: Published) -> str | None:
    """The paper's number for the method of `row`, or why it has none; None if its table lacks the method."""
    label = _label_for(row, [*numbers.values_by_method, *numbers.absent])
    if label is None:
        return None
    return numbers.absent[label] if label in numbers.absent else number_text(numbers.values_by_method[label], numbers)


def _label_for(row: Row, labels: Iterable[str]) -> str | None:
    """The label that means the row's method.

    The row's own label goes first, then the one that names most of its settings: `FedGF(c=1)` means runs of FedGF with
    c = 1, and `FedGF` the others.
    """
    fitting = {label: _settings_named(label, row) for label in labels}
    return max((one for one in fitting if fitting[one] >= 0), key=fitting.__getitem__, default=None)


def _settings_named(label: str, row: Row) -> float:
    """How many of the settings of the row's method `label` names; -1 if it means another method or other settings."""
    if plain(label) == plain(row.label):
        return inf
    method, _, settings = label.removesuffix(")").partition("(")
    named = dict(part.split("=") for part in settings.split(", ") if part)
    is_of_row = plain(method) == plain(row.runs[0].method) and all(
        name in row.hyper and row.hyper[name] == literal_eval(value) for name, value in named.items()
    )
    return len(named) if is_of_row else -1

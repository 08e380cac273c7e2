"""The numbers that a paper prints, as text, and our values of the same quantities where we measure them."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterable, Sequence
from math import inf

from ..experiments.recipe import Number, Published
from ..methods import plain
from .comparison_data import ComparisonData, Row
from .text_table import NOTHING

ACCURACY = "test accuracy %"  # the published quantity that has columns of its own in the comparison table
# For each quantity that papers print: the names of our mean and spread, and the factor to the unit of the paper.
OURS = {
    "training accuracy over clients %": ("client_accuracy_mean", "client_accuracy_std", 100),
    "validation accuracy over clients %": ("validation_accuracy_mean", "validation_accuracy_std", 100),
    "lambda_max": ("lambda_max", None, 1),
    "Hessian top eigenvalue": ("lambda_max", None, 1),
    "Hessian trace": ("trace", None, 1),
    "LPF": ("lpf", None, 1),
    "flatness discrepancy": ("flatness_discrepancy", None, 1),
    "consistency": ("consistency", None, 1),
}
RELATIVE = {"rounds": "rounds", "communication": "bytes"}  # quantity relative to FedAvg: field of `Reached`


def number_text(value: Number, numbers: Published) -> str:
    """Format a mean, or a mean and its spread.

    TOML reads 76.00 as 76, so all percentages of a block get as many decimals as the one that has the most.
    """
    if not numbers.quantity.endswith("%"):
        return " ± ".join(f"{part:.10g}" for part in _parts(value))
    printed = [f"{part:.10g}" for number in numbers.values_by_method.values() for part in _parts(number)]
    decimals = max(len(text.partition(".")[2]) for text in printed)
    return " ± ".join(f"{part:.{decimals}f}" for part in _parts(value))


def _parts(value: Number) -> list[float]:
    return value if isinstance(value, list) else [value]


def line_of(numbers: Published) -> str:
    """Format all numbers of a block as one line: place in the paper, cells, quantity, numbers, warning."""
    cells = ",".join(numbers.cell) or "all cells"
    over = "mean over the cells of " if numbers.mean_over_cells else ""
    values = [f"{label} {number_text(value, numbers)}" for label, value in numbers.values_by_method.items()]
    values += [f"{label} {reason}" for label, reason in numbers.absent.items()]
    warning = f" ({numbers.warning})" if numbers.warning else ""
    return f"paper, {numbers.where}, {over}{cells}, {numbers.quantity}: {', '.join(values)}{warning}"


def text_for(row: Row, numbers: Published) -> str:
    """Return the paper's number for the method of `row`, or why the paper has none, or `NOTHING` if that is unknown."""
    label = label_for(row, [*numbers.values_by_method, *numbers.absent])
    if label is None:
        return NOTHING
    return numbers.absent[label] if label in numbers.absent else number_text(numbers.values_by_method[label], numbers)


def label_for(row: Row, labels: Iterable[str]) -> str | None:
    """Return the label that denotes the method of `row`; None if no label does.

    The row's own label takes precedence, then the label that names most of its settings: `FedGF(c=1)` denotes runs of
    FedGF with c = 1, and `FedGF` all others.
    """
    matches = {label: _settings_named(label, row) for label in labels}
    return max((label for label in matches if matches[label] >= 0), key=matches.__getitem__, default=None)


def _settings_named(label: str, row: Row) -> float:
    """Count the row's settings that `label` names; return inf for the row's own label, -1 for a label of other runs."""
    if plain(label) == plain(row.label):
        return inf
    method, _, settings = label.removesuffix(")").partition("(")
    named = dict(part.split("=") for part in settings.split(", ") if part)
    is_of_row = plain(method) == plain(row.runs[0].method) and all(
        name in row.hyper and row.hyper[name] == literal_eval(value) for name, value in named.items()
    )
    return len(named) if is_of_row else -1


def published_lines(comparison: ComparisonData) -> dict[str, list[str]]:
    """Return lines of text, one text for each row of the comparison, by title.

    There is a line with the paper's values for each published quantity except test accuracy, in the paper's order. A
    line with our values follows it if any of our runs measured the quantity.
    """
    lines: dict[str, list[str]] = {}
    for numbers in comparison.published:
        if numbers.quantity != ACCURACY:
            theirs = [text_for(row, numbers) for row in comparison.rows]
            lines[f"{numbers.quantity}: paper, {numbers.where}"] = theirs
            ours = [_ours(row, numbers.quantity, comparison.rows) or NOTHING for row in comparison.rows]
            if set(ours) != {NOTHING}:
                lines[f"{numbers.quantity}: ours"] = ours
    return lines


def _ours(row: Row, quantity: str, rows: Sequence[Row]) -> str | None:
    """Format our mean over seeds of a `quantity` of the paper; return None if our runs did not measure it."""
    for place, target in enumerate(row.reached):
        to = f"to {100 * target.accuracy:g} %"
        rounds = target.mean("rounds")
        if quantity == f"rounds {to}" and rounds is not None:
            return f"{rounds:.0f} ({len(target.plain)}/{len(row.runs)})"
        for name, field in RELATIVE.items():
            if quantity == f"{name} {to}, relative to FedAvg":
                of_fedavg = [other.reached[place] for other in rows if other.label == "FedAvg"]
                ours, theirs = target.mean(field), of_fedavg[0].mean(field) if len(of_fedavg) == 1 else None
                return f"{ours / theirs:.2f}" if ours is not None and theirs else None  # both must reach the target
    mean, spread, factor = OURS.get(quantity, ("", None, 1))
    if mean not in row.estimates:
        return None
    names = [name for name in (mean, spread) if name]
    return " ± ".join(f"{factor * row.estimates[name].mean:.4g}" for name in names)

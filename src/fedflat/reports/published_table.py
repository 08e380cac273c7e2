"""What a paper prints besides test accuracies, a line for each quantity, and ours below it where we measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .columns import ACCURACY, NOTHING
from .comparison_data import ComparisonData, Row
from .published import text_for

# Our mean and spread of the quantities that papers print, and the factor to their unit.
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


@dataclass(frozen=True)
class PublishedQuantity:
    """A quantity with a cell for each row of the comparison."""

    title: str
    cells: Sequence[str]


def published_lines(comparison: ComparisonData) -> list[PublishedQuantity]:
    """The lines, in the order of the paper's numbers; empty if it prints test accuracies only."""
    lines: dict[str, list[str]] = {}
    for numbers in comparison.published:
        if numbers.quantity != ACCURACY:
            theirs = [text_for(row, numbers) or NOTHING for row in comparison.rows]
            lines[f"{numbers.quantity}: paper, {numbers.where}"] = theirs
            ours = [_ours(row, numbers.quantity) or NOTHING for row in comparison.rows]
            if set(ours) != {NOTHING}:
                lines[f"{numbers.quantity}: ours"] = ours
    return [PublishedQuantity(title, cells) for title, cells in lines.items()]


def _ours(row: Row, quantity: str) -> str | None:
    """Our mean over seeds of what the paper calls `quantity`; None if we have none."""
    for target in row.reached:
        rounds = target.mean("rounds")
        if quantity == f"rounds to {100 * target.accuracy:g} %" and rounds is not None:
            return f"{rounds:.0f} ({len(target.plain)}/{len(row.runs)})"
    mean, spread, factor = OURS.get(quantity, ("", None, 1))
    if mean not in row.estimates:
        return None
    names = [name for name in (mean, spread) if name]
    return " ± ".join(f"{factor * row.estimates[name].mean:.4g}" for name in names)

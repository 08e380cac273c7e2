"""What a paper prints besides test accuracies, a line for each quantity, and ours below it where we measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .columns import ACCURACY, NOTHING
from .comparison_data import ComparisonData, Row, Target
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
RELATIVE = {"rounds": "rounds", "communication": "bytes"}  # what papers print in FedAvg's, and our field of a target


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
            ours = [_ours(row, numbers.quantity, comparison.rows) or NOTHING for row in comparison.rows]
            if set(ours) != {NOTHING}:
                lines[f"{numbers.quantity}: ours"] = ours
    return [PublishedQuantity(title, cells) for title, cells in lines.items()]


def _ours(row: Row, quantity: str, rows: Sequence[Row]) -> str | None:
    """Our mean over seeds of what the paper calls `quantity`; None if we have none."""
    for place, target in enumerate(row.reached):
        to = f"to {100 * target.accuracy:g} %"
        rounds = target.mean("rounds")
        if quantity == f"rounds {to}" and rounds is not None:
            return f"{rounds:.0f} ({len(target.plain)}/{len(row.runs)})"
        for name, field in RELATIVE.items():
            if quantity == f"{name} {to}, relative to FedAvg":
                return _relative(target, [one.reached[place] for one in rows if one.label == "FedAvg"], field)
    mean, spread, factor = OURS.get(quantity, ("", None, 1))
    if mean not in row.estimates:
        return None
    names = [name for name in (mean, spread) if name]
    return " ± ".join(f"{factor * row.estimates[name].mean:.4g}" for name in names)


def _relative(target: Target, of_fedavg: Sequence[Target], field: str) -> str | None:
    """What was spent on a target in FedAvg's; None if one of both did not reach it, or FedAvg is not one row."""
    ours, theirs = target.mean(field), of_fedavg[0].mean(field) if len(of_fedavg) == 1 else None
    return f"{ours / theirs:.2f}" if ours is not None and theirs else None

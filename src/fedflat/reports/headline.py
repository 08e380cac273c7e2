"""The sentence with which a report opens: who is ahead of the baseline, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

from ..experiments.statistics import Difference
from .comparison_data import ComparisonData, Row

NAMED = 4  # methods that the sentence names


def headline(comparison: ComparisonData) -> str:
    """One sentence. A method is ahead for certain if the 95 % interval of its difference is above zero.

    Intervals are for one comparison each: of forty methods as good as the baseline, one is above zero by chance.
    """
    rows = {row.label: row.difference for row in comparison.rows if row.difference is not None}
    accuracy = "test accuracy" + (", chosen on the test set," if comparison.protocol == "best-test" else "")
    if not rows:
        return _alone(comparison.rows)
    ahead = sorted((label for label, d in rows.items() if d.low is not None and d.low > 0), key=lambda n: -rows[n].mean)
    best = ahead[0] if ahead else max(rows, key=lambda label: rows[label].mean)
    first, to = rows[best], _baseline_of(comparison, best)
    if first.low is None:
        return (
            f"One seed cannot tell who is ahead of {to}: {best}'s {accuracy} is {_points(first)} {_side(first)}, "
            "without an interval."
        )
    if ahead:
        others = f"; so {'is' if len(ahead) == 2 else 'are'} {_listed(ahead[1:])}" if len(ahead) > 1 else ""
        return f"{best} is ahead of {to} by {_points(first)} of {accuracy} ({_interval(first)}){others}."
    if all(d.high is not None and d.high < 0 for d in rows.values()):
        behind = f"the closest, {best}, is {_points(first)} of {accuracy} behind"
        return f"{comparison.baseline} is ahead of all others; {behind} ({_interval(first)})."
    highest = f"the highest difference is {best}'s, {100 * first.mean:+.2f} points of {accuracy}"
    return f"Nobody is certainly ahead of {comparison.baseline}: {highest} ({_interval(first)})."


def _alone(rows: Sequence[Row]) -> str:
    """The sentence for rows that are compared with nothing."""
    best = max(rows, key=lambda row: row.accuracy.mean)
    spread = "" if best.accuracy.std is None else f" ± {100 * best.accuracy.std:.2f}"
    reached = f"{100 * best.accuracy.mean:.2f}{spread} % test accuracy ({_seeds(best.accuracy.n)})"
    return f"{best.label} has {reached}; there is nothing to compare it with."


def _baseline_of(comparison: ComparisonData, label: str) -> str:
    return next(row.baseline or comparison.baseline for row in comparison.rows if row.label == label)


def _points(d: Difference) -> str:
    return f"{100 * abs(d.mean):.2f} points"


def _side(d: Difference) -> str:
    return "higher" if d.mean >= 0 else "lower"


def _interval(d: Difference) -> str:
    low, high = (0.0 if end is None else 100 * end for end in (d.low, d.high))
    return f"95 % interval {low:+.2f} to {high:+.2f}, {_seeds(d.n)}"


def _seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence; of many the first ones, and how many more there are."""
    shown = [*names[:NAMED], *([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"

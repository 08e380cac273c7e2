"""The columns of the comparison table, the same on a terminal and on a page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..experiments.recipe_files import Published
from ..methods import plain
from ..metrics.protocols import WINDOW
from .comparison_data import ComparisonData, Row

NOTHING = "–"
ACCURACY = "test accuracy %"  # the published quantity that is subtracted from ours


@dataclass(frozen=True)
class Column:
    """A title, what the numbers mean, and the text of a row's cell."""

    title: str
    meaning: str
    cell: Callable[[Row], str]


def columns(comparison: ComparisonData) -> list[Column]:
    """The columns of `comparison`, in order."""
    validated = all("validation_accuracy_mean" in row.estimates for row in comparison.rows)
    return [
        Column("method", "class name; hyper-parameters only where they tell variants apart", lambda row: row.label),
        Column(
            "test accuracy\N{NO-BREAK SPACE}%",
            f"{protocol_in_words(comparison)}; mean ± sample standard deviation over seeds",
            _accuracy,
        ),
        Column(
            f"Δ to {comparison.baseline}",
            "paired difference of test accuracy, in points, with 95 % confidence interval (Student's t over seeds)",
            _difference,
        ),
        *(column for numbers in comparison.published for column in _published_columns(numbers)),
        *(_rounds_column(place, target) for place, target in enumerate(comparison.targets)),
        _client_column("client", "training"),
        *([_client_column("validation", "validation")] if validated else []),
        Column(
            "λ max", "largest eigenvalue of the Hessian of the training loss, final model", _number("lambda_max", ".2f")
        ),
        Column(
            "sharpness",
            "F(w + ρ ∇F/‖∇F‖) − F(w) of the training loss, ρ = 0.05, final model",
            _number("sharpness", ".4f"),
        ),
        Column("gradients", "minibatch gradients computed by all clients, per run", _number("gradients", ",.0f")),
        Column("MB sent", "to and from all clients, per run, from the sizes of the records", _megabytes),
    ]


def target_columns(comparison: ComparisonData, place: int) -> list[Column]:
    """What each method spent to reach the target number `place`; means over the seeds that reached it."""

    def column(name: str, title: str, meaning: str, factor: float = 1) -> Column:
        def cell(row: Row) -> str:
            value = row.reached[place].mean(name)
            return NOTHING if value is None else f"{factor * value:,.0f}"

        return Column(title, meaning, cell)

    return [
        Column(f"to {_percent(comparison.targets[place])}", "class name", lambda row: row.label),
        column("rounds", "rounds", "first round whose test accuracy is at least the target"),
        column("rounds_smoothed", "rounds, smoothed", f"the same of the curve under a Hanning window of {WINDOW}"),
        column("gradients", "gradients", "minibatch gradients of all clients until then"),
        column("vectors", "vectors sent", "model-sized vectors to and from all clients until then"),
        column("bytes", "MB sent", "the same in megabytes", 1e-6),
    ]


def protocol_in_words(comparison: ComparisonData) -> str:
    """Which accuracy the table shows."""
    evaluations = comparison.rows[0].estimates["test_accuracy_evaluations"].mean
    words = {
        "last": f"mean over the last {evaluations:.0f} evaluations of each run",
        "final": "of the final model of each run",
        "best-validation": "of the round that did best on the clients' validation samples",
        "best-test": "BEST ON THE TEST SET: the highest of each run, chosen on the test set and so too good",
    }
    return words[comparison.protocol]


def caption(comparison: ComparisonData) -> str:
    """What a reader of the table must know, in one line."""
    seeds = ", ".join(map(str, comparison.seeds))
    final = "; all else is of the final model" if comparison.protocol.startswith("best") else ""
    participation = comparison.runs[0].settings["participation"]
    return f"test accuracy: {protocol_in_words(comparison)}{final}; seeds {seeds}; participation {participation}"


def _accuracy(row: Row) -> str:
    value = row.accuracy
    mean = f"{100 * value.mean:.2f}"
    return mean if value.std is None else f"{mean} ± {100 * value.std:.2f}"


def _difference(row: Row) -> str:
    d = row.difference
    if d is None:
        return NOTHING
    interval = "" if d.low is None or d.high is None else f" [{100 * d.low:+.2f}, {100 * d.high:+.2f}]"
    return f"{100 * d.mean:+.2f}{interval}"


def _published_columns(numbers: Published) -> list[Column]:
    """A paper's numbers, and for accuracies our number minus the paper's."""

    def printed(row: Row) -> str:
        return " ± ".join(f"{value:g}" for value in _published_values(numbers, row)) or NOTHING

    def ours_minus_theirs(row: Row) -> str:
        values = _published_values(numbers, row)
        return f"{100 * row.accuracy.mean - values[0]:+.2f}" if values else NOTHING

    warning = f"; {numbers.warning}" if numbers.warning else ""
    column = Column(f"paper: {numbers.quantity}", f"{numbers.where}{warning}", printed)
    if numbers.quantity != ACCURACY:
        return [column]
    return [column, Column("ours − paper", "points of test accuracy", ours_minus_theirs)]


def _published_values(numbers: Published, row: Row) -> tuple[float, ...]:
    """What the paper prints for the method of `row`: mean and spread, the mean alone, or nothing."""
    printed = {plain(label): value for label, value in numbers.values_by_method.items()}
    for name in (row.label, row.runs[0].method):  # a variant's own number before the method's
        if plain(name) in printed:
            value = printed[plain(name)]
            return tuple(value) if isinstance(value, list) else (value,)
    return ()


def _rounds_column(place: int, target: float) -> Column:
    """The first round that reached a target."""

    def cell(row: Row) -> str:
        rounds, reached = row.reached[place].mean("rounds"), len(row.reached[place].plain)
        return NOTHING if rounds is None else f"{rounds:.0f} ({reached}/{len(row.runs)})"

    goal = _percent(target)
    meaning = f"first round with test accuracy ≥ {goal}, mean over the seeds that reached it (how many did)"
    return Column(f"rounds to {goal}", meaning, cell)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def _client_column(kind: str, own: str) -> Column:
    """The spread over clients of the accuracies, on their `own` samples, whose names begin with `kind`."""

    def cell(row: Row) -> str:
        mean, std, worst, best = (
            100 * row.estimates[f"{kind}_accuracy_{name}"].mean for name in ("mean", "std", "worst", "best")
        )
        return f"{mean:.1f} ± {std:.1f} ({worst:.0f}–{best:.0f})"

    meaning = f"final accuracy on each client's own {own} samples: mean ± population std over clients (worst–best)"
    return Column(f"clients, {own}\N{NO-BREAK SPACE}%", meaning, cell)


def _number(name: str, form: str) -> Callable[[Row], str]:
    """The text of the number `name`, in the format `form`."""
    return lambda row: format(row.estimates[name].mean, form) if name in row.estimates else NOTHING


def _megabytes(row: Row) -> str:
    megabytes = (row.estimates["bytes_down"].mean + row.estimates["bytes_up"].mean) / 1e6
    return f"{megabytes:,.0f}" if megabytes >= 10 else f"{megabytes:.2g}"

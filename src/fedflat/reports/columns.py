"""The columns of the comparison table, the same on a terminal, on a page and in LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite

from ..experiments.recipe import Published
from ..metrics.classification import METRICS
from ..metrics.flatness.measure import subsets, with_error
from ..metrics.protocols import WINDOW
from .comparison_data import ComparisonData, Row, accuracy_in_words, by_task, score_of
from .published import ACCURACY, label_for, text_for
from .run_settings import participation_in_words
from .text_table import NOTHING

ERRORS = {"rmse": "root mean squared error", "mae": "mean absolute error"}  # of regressions


@dataclass(frozen=True)
class Column:
    """A column: its title, the meaning of its numbers, and the text of a row's cell."""

    title: str
    meaning: str
    cell: Callable[[Row], str]
    merit: Callable[[Row], float | None] = lambda row: None  # higher is better; None: this row cannot be best

    def best(self, rows: Sequence[Row]) -> set[str]:
        """Return the labels of the best row of each task, unless its interval leaves open whether it is the best."""
        best: set[str] = set()
        for same in by_task(rows):
            merits = {row.label: merit for row in same if (merit := self.merit(row)) is not None}
            top = {label for label, merit in merits.items() if merit == max(merits.values())}
            best |= {row.label for row in same if row.label in top and _is_ahead(row, same)}
        return best


def _is_ahead(row: Row, rows: Sequence[Row]) -> bool:
    """Tell whether the interval of the row's gain is above zero.

    For a baseline, tell whether the intervals of all rows that are compared with it are below zero.
    """
    if row.is_baseline:
        others = [other.gain for other in rows if other.baseline == row.label and other is not row]
        return bool(others) and all(d is not None and d.high is not None and d.high < 0 for d in others)
    d = row.gain
    return d is not None and d.low is not None and d.low > 0


def columns(comparison: ComparisonData) -> list[Column]:
    """Return the columns of `comparison`, in order; columns without any number are left out."""
    every = [
        Column("method", "class name, and settings that differ among the runs", lambda row: row.label),
        Column(
            comparison.score.axis.replace(" %", "\N{NO-BREAK SPACE}%"),
            f"{protocol_in_words(comparison)}; mean ± sample standard deviation over seeds",
            _accuracy,
            lambda row: row.score.sign * row.accuracy.mean,
        ),
        Column(f"Δ to {comparison.baseline}", _meaning_of_difference(comparison), _difference,
               lambda row: None if row.gain is None else row.gain.mean),
        *_published_columns(comparison.published),
        *(_rounds_column(place, comparison) for place in range(len(comparison.targets))),
        _client_column("client_test", "test", "on each client's own test samples"),
        _client_column("personal_test", "own models, test", "of each client's own model on its test samples"),
        _client_column("client", "training", "on each client's own training samples"),
        _client_column("validation", "validation", "on each client's own validation samples"),
        _client_column("personal", "own models", "of each client's own model on its training samples"),
        *(_metric_column(name) for name in ("label-accuracy", *METRICS)),
        *(_error_column(name, meaning) for name, meaning in ERRORS.items()),
        Column(measure_title("lambda_max"), "largest eigenvalue of the Hessian of the training loss, final model",
               measure_cell("lambda_max")),
        Column(measure_title("sharpness"), "F(w + ρ ∇F/‖∇F‖) − F(w) of the training loss, ρ = 0.05, final model",
               measure_cell("sharpness")),
        Column("ε", "privacy budget spent by the run, for one client added or removed", _epsilon),
        Column("gradients", "minibatch gradients computed by all clients, per run",
               lambda row: f"{row.estimates['gradients'].mean:,.0f}"),
        Column("MB sent", "to and from all clients, per run, from the sizes of the records",
               lambda row: _in_megabytes(row.estimates["bytes_down"].mean + row.estimates["bytes_up"].mean)),
    ]  # fmt: skip
    return _filled(every, comparison)


def target_columns(comparison: ComparisonData, place: int) -> list[Column]:
    """Return the columns with the cost of reaching target number `place`, as means over the seeds that reached it.

    The list is empty if no run reached the target.
    """

    def column(name: str, title: str, meaning: str, written: Callable[[float], str] = "{:,.0f}".format) -> Column:
        def cell(row: Row) -> str:
            value = row.reached[place].mean(name)
            return NOTHING if value is None else written(value)

        return Column(title, meaning, cell)

    every = [
        Column(f"to {_goal(comparison, place)}", "class name", lambda row: row.label),
        column("rounds", "rounds", f"first round whose {comparison.score.title} is at least as good as the target"),
        column("rounds_smoothed", "rounds, smoothed", f"the same of the curve under a Hanning window of {WINDOW}"),
        column("gradients", "gradients", "minibatch gradients of all clients until then"),
        column("vectors", "vectors sent", "model-sized vectors to and from all clients until then"),
        column("bytes", "MB sent", "the same in megabytes", _in_megabytes),
    ]
    filled = _filled(every, comparison)
    return filled if len(filled) > 1 else []


def _filled(every: list[Column], comparison: ComparisonData) -> list[Column]:
    """Return the first column, and all others that have a number in any row."""
    return [
        column
        for column in every
        if column is every[0] or any(column.cell(row) != NOTHING for row in comparison.rows)
    ]  # fmt: skip


def measure_title(name: str) -> str:
    """Return the name of a measure of flatness as reports show it."""
    title, bracket, settings = name.partition("(")
    return title.replace("lambda", "λ").replace("_", " ") + bracket + settings


def protocol_in_words(comparison: ComparisonData) -> str:
    """Describe which accuracy the table shows."""
    evaluations = comparison.rows[0].estimates[f"{score_of(comparison.runs[0])}_evaluations"].mean
    return accuracy_in_words(comparison.protocol, round(evaluations))


def caption(comparison: ComparisonData) -> str:
    """Return the caption of the table: protocol, seeds, participation, and targets that no run reached."""
    parts = [f"{comparison.score.title}: {protocol_in_words(comparison)}"]
    if comparison.protocol.startswith("best"):
        parts.append("all else is of the final model")
    parts.append(f"seeds {', '.join(map(str, comparison.seeds))}")
    rules = [run.settings["participation"] for run in comparison.runs]
    if all(rule == rules[0] for rule in rules):
        parts.append(participation_in_words(rules[0]))
    for place in range(len(comparison.targets)):
        if not any(row.reached[place].plain for row in comparison.rows):
            parts.append(f"no run reached {_goal(comparison, place)}")
    return "; ".join(parts)


def _accuracy(row: Row) -> str:
    value, factor = row.accuracy, row.score.factor
    mean = f"{factor * value.mean:.2f}"
    return mean if value.std is None else f"{mean} ± {factor * value.std:.2f}"


def _meaning_of_difference(comparison: ComparisonData) -> str:
    baselines = [row.label for row in comparison.rows if row.is_baseline]
    to = f", each row's to the one of {', '.join(baselines)} with the same settings" if len(baselines) > 1 else ""
    unit = ", in points" if comparison.score.is_share else ""
    return (
        f"paired difference of {comparison.score.title}{to}{unit}, with 95 % confidence interval (Student's t over "
        "seeds; of accuracies no narrower than the test set allows)"
    )


def _difference(row: Row) -> str:
    d, factor = row.difference, row.score.factor
    if d is None:
        return NOTHING
    interval = "" if d.low is None or d.high is None else f" [{factor * d.low:+.2f}, {factor * d.high:+.2f}]"
    return f"{factor * d.mean:+.2f}{interval}"


def _published_columns(published: Sequence[Published]) -> Iterator[Column]:
    """Yield two columns for each block of published test accuracies: the paper's values, and ours minus the paper's.

    `published_lines` returns the other numbers of the paper.
    """

    def difference(row: Row, numbers: Published) -> str:
        theirs = numbers.values_by_method.get(label_for(row, numbers.values_by_method) or "")
        if theirs is None:
            return NOTHING
        return f"{100 * row.accuracy.mean - (theirs[0] if isinstance(theirs, list) else theirs):+.2f}"

    for numbers in published:
        if numbers.quantity == ACCURACY:
            warning = f"; {numbers.warning}" if numbers.warning else ""
            yield Column(f"paper: {numbers.quantity}", f"{numbers.where}{warning}", partial(text_for, numbers=numbers))
            yield Column("ours − paper", "points of test accuracy", partial(difference, numbers=numbers))


def _rounds_column(place: int, comparison: ComparisonData) -> Column:
    """Return the column of the first round that reached a target."""

    def rounds(row: Row) -> float | None:
        return row.reached[place].mean("rounds")

    def cell(row: Row) -> str:
        reached = len(row.reached[place].plain)
        return NOTHING if rounds(row) is None else f"{rounds(row):.0f} ({reached}/{len(row.runs)})"

    goal, score = _goal(comparison, place), comparison.score
    relation = "≥" if score.larger_is_better else "≤"
    meaning = f"first round with {score.title} {relation} {goal}, mean over the seeds that reached it (how many did)"
    return Column(f"rounds to {goal}", meaning, cell)


def _goal(comparison: ComparisonData, place: int) -> str:
    """Format target number `place`."""
    return comparison.score.text(comparison.targets[place], 1).replace(" ", "\N{NO-BREAK SPACE}")


def _client_column(kind: str, own: str, which: str) -> Column:
    """Return the column of accuracies over clients.

    kind: prefix of the names of the estimates. own, which: samples and models in words, briefly and in full.
    """

    def cell(row: Row) -> str:
        if f"{kind}_accuracy_mean" not in row.estimates:
            return NOTHING
        mean, std, worst, best = (
            100 * row.estimates[f"{kind}_accuracy_{name}"].mean for name in ("mean", "std", "worst", "best")
        )
        tenth = row.estimates.get(f"{kind}_accuracy_worst_tenth")
        end = "" if tenth is None else f"; {100 * tenth.mean:.0f}"
        return f"{mean:.1f} ± {std:.1f} ({worst:.0f}–{best:.0f}{end})"

    meaning = f"final accuracy {which}: mean ± population std over clients (worst–best; mean of the worst tenth)"
    return Column(f"clients, {own}\N{NO-BREAK SPACE}%", meaning, cell)


def _metric_column(metric: str) -> Column:
    """Return the column of a further metric of the final model on the test samples."""
    name = f"test_{metric.replace('-', '_')}_last"

    def cell(row: Row) -> str:
        return f"{100 * row.estimates[name].mean:.2f}" if name in row.estimates else NOTHING

    title = {"auc": "AUC"}.get(metric, metric.replace("-", " ").replace("f1", "F1"))
    return Column(f"{title}\N{NO-BREAK SPACE}%", f"{title} of the final model on the test samples", cell)


def _error_column(name: str, meaning: str) -> Column:
    """Return the column of an error of a regression."""

    def cell(row: Row) -> str:
        estimate = row.estimates.get(f"test_{name}_last")
        return NOTHING if estimate is None else f"{estimate.mean:.4g}"

    return Column(name.upper(), f"{meaning} of the final model on the test samples", cell)


def measure_cell(name: str) -> Callable[[Row], str]:
    """Return the function for the cells of a flatness measure; a cell is empty unless all runs have finite values."""

    def cell(row: Row) -> str:
        if name not in row.estimates:
            return NOTHING
        values, estimate = [run.flatness[name] for run in row.runs], row.estimates[name]
        if estimate.std is None:
            return str(values[0])
        return with_error(estimate.mean, estimate.std) + subsets(values) if isfinite(estimate.std) else NOTHING

    return cell


def _epsilon(row: Row) -> str:
    return f"{row.estimates['epsilon'].mean:.3g}" if "epsilon" in row.estimates else NOTHING


def _in_megabytes(number: float) -> str:
    """Format a number of bytes as megabytes, below 10 MB with two significant digits."""
    megabytes = number / 1e6
    return f"{megabytes:,.0f}" if megabytes >= 10 else f"{megabytes:.2g}"

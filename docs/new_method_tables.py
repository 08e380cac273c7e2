"""The tables and the sentence of docs/methods.md on new methods beside their relatives, from docs/new_methods.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from statistics import fmean
from typing import NamedTuple

from benchmarks.new_methods import Result, Row
from benchmarks.tables import MISSING, Table
from fedflat.experiments.statistics import Difference, mean_estimate, paired_difference
from fedflat.rounds.settings import flattened

UNSHOWN = ("method", "method.name", "data.validation")  # settings that the first column and the text say
DIVERGED = "diverged"
NOISE = "within noise"


class Compared(NamedTuple):
    """A row, one that it is compared with, and the difference in points; none without two seeds of both."""

    label: str
    other: str
    difference: Difference | None

    @property
    def verdict(self) -> str:
        """Whether the interval leaves out 0, and on which side."""
        found = self.difference
        if found is None or found.low is None or found.high is None:
            return MISSING
        return "higher" if found.low > 0 else "lower" if found.high < 0 else NOISE


def is_personal(row: Row) -> bool:
    """Tell whether clients' own samples are held out, to measure the models that they use."""
    return "data.validation" in flattened(row.settings)


def accuracy(result: Result) -> float | None:
    """Return what a run is compared by, in percent: on clients' own samples if there are some."""
    found = result.test_accuracy if result.own_accuracy is None else result.own_accuracy
    return None if found is None else 100 * found


def server_table(rows: Sequence[Row], results: Sequence[Result]) -> Table:
    """Return accuracy and cost of all rows that are compared by the server's model."""
    return _table("test accuracy %", [row for row in rows if not is_personal(row)], results)


def personal_table(rows: Sequence[Row], results: Sequence[Result]) -> Table:
    """Return accuracy and cost of all rows that are compared by the models that clients use."""
    return _table("accuracy on own samples %", [row for row in rows if is_personal(row)], results)


def _table(measure: str, rows: Sequence[Row], results: Sequence[Result]) -> Table:
    titles = ("method", measure, "gradients", "numbers sent", "settings besides", "taken from")
    return Table(titles, [_line(row, [one for one in results if one.label == row.label]) for row in rows])


def _line(row: Row, own: Sequence[Result]) -> tuple[str, ...]:
    cost = (_mean([one.gradients for one in own], 1, ""), _mean([one.numbers for one in own], 1e6, " M"))
    return row.label, _accuracy(own), *cost, settings_text(row), row.source


def _accuracy(results: Sequence[Result]) -> str:
    """Return mean and sample standard deviation over seeds, and how many runs diverged."""
    known = [x for one in results if (x := accuracy(one)) is not None]
    if len(known) < len(results):
        return f"{DIVERGED} ({len(results) - len(known)} of {len(results)})"
    found = mean_estimate(known) if known else None
    if found is None:
        return MISSING
    return f"{found.mean:.1f}" + (f" ± {found.std:.1f}" if found.std is not None else "")


def _mean(values: Sequence[float | None], unit: float, after: str) -> str:
    known = [x for x in values if x is not None]
    return f"{fmean(known) / unit:,.0f}{after}" if known else MISSING


def settings_text(row: Row) -> str:
    """Return what a row sets besides the common setting and the method's name."""
    shown = {key: value for key, value in flattened(row.settings).items() if key not in UNSHOWN}
    return ", ".join(f"`{key} = {value}`" for key, value in shown.items())


def compared(rows: Sequence[Row], results: Sequence[Result]) -> Iterator[Compared]:
    """Yield every row with each row that it is compared with, paired by seed."""
    for row in rows:
        for other in row.beside:
            yield Compared(row.label, other, _difference(row.label, other, results))


def _difference(label: str, other: str, results: Sequence[Result]) -> Difference | None:
    both = ({one.seed: x for one in results if one.label == name and (x := accuracy(one)) is not None}
            for name in (label, other))  # fmt: skip
    of_test = [one.test_samples for one in results if one.label == label and one.own_accuracy is None]
    samples = next((number / 100 for number in of_test if number is not None), inf)  # accuracies are in percent
    return paired_difference(*both, samples)


def difference_table(rows: Sequence[Row], results: Sequence[Result]) -> Table:
    """Return the differences of all rows from their relatives."""
    lines = []
    for one in compared(rows, results):
        found = one.difference
        mean = MISSING if found is None else f"{found.mean:+.1f}"
        interval = MISSING if found is None or found.low is None else f"{found.low:+.1f} to {found.high:+.1f}"
        lines.append((one.label, one.other, mean, interval, one.verdict))
    return Table(("method", "minus", "difference, points", "95 % interval", "it is"), lines)


def findings(rows: Sequence[Row], results: Sequence[Result]) -> str:
    """Return in a sentence which differences the seeds can tell from none."""
    every = list(compared(rows, results))
    apart = [told for verdict in ("higher", "lower") if (told := _told(verdict, every))]
    noise = sum(one.verdict == NOISE for one in every)
    return f"Of {len(every)} differences {noise} are within the noise of the seeds" + (
        f", and outside it {' and '.join(apart)}." if apart else "."
    )


def _told(verdict: str, every: Sequence[Compared]) -> str:
    """Return how many differences have the verdict, and which."""
    some = [f"{one.label} than {one.other}" for one in every if one.verdict == verdict]
    return f"{len(some)} {verdict} ({'; '.join(some)})" if some else ""

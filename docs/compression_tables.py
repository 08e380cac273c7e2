"""The tables of docs/howto/compression.md on accuracy and flatness, from docs/compression.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, log, sqrt
from typing import NamedTuple

from benchmarks.compression import FULL, Measured, Result
from benchmarks.tables import MISSING, Table
from fedflat.experiments.statistics import Difference, mean_estimate, paired_difference

MEASURES = {"trace": "trace of the Hessian", "lambda_max": "largest eigenvalue", "sharpness": "sharpness"}
COMPARED = ("trace", "lambda_max")
COLUMNS = {  # measure, and whether at equal loss
    f"{MEASURES[name]}, {'equal loss' if equal_loss else 'equal rounds'}": (name, equal_loss)
    for name in COMPARED
    for equal_loss in (False, True)
}
DIVERGED = "diverged"


class Logarithm(NamedTuple):
    """The logarithm of a measure, and its error: that of the measure, relative to it."""

    value: float
    error: float


class Ratio(NamedTuple):
    """A measure of compressed runs, divided by that of runs with full messages, as a difference of logarithms."""

    method: str
    message: str
    measure: str
    equal_loss: bool  # with full messages at the round with the same training loss, and not after as many rounds
    difference: Difference | None

    def __str__(self) -> str:
        """Return the ratio and its 95 % interval."""
        found = self.difference
        if found is None:
            return MISSING
        return f"{exp(found.mean):.2f}" + (
            "" if found.low is None or found.high is None else f" ({exp(found.low):.2f} to {exp(found.high):.2f})"
        )

    @property
    def verdict(self) -> str:
        """What the interval says; empty without one."""
        found = self.difference
        if found is None or found.low is None or found.high is None:
            return ""
        return "sharper" if found.low > 0 else "flatter" if found.high < 0 else "in doubt"


def of(results: Sequence[Result], method: str, message: str) -> list[Result]:
    """Return the runs of a method with a message."""
    return [one for one in results if (one.method, one.message) == (method, message)]


def pairs(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Return the methods, each with every message."""
    return [(method, message) for method in dict.fromkeys(one.method for one in results)
            for message in dict.fromkeys(one.message for one in results)]  # fmt: skip


def value_table(results: Sequence[Result]) -> Table:
    """Return what every pair sends and reaches, and how flat it ends: means and standard deviations over seeds."""
    titles = ("method", "message", "bytes", "test accuracy %", "training loss", *MEASURES.values())
    return Table(titles, [_line(method, message, of(results, method, message)) for method, message in pairs(results)])


def _line(method: str, message: str, own: Sequence[Result]) -> tuple[str, ...]:
    sent = f"{own[0].message_bytes:,}"
    ends = [one.end for one in own if one.end is not None]
    if len(ends) < len(own):
        return method, f"`{message}`", sent, f"{DIVERGED} ({len(own) - len(ends)} of {len(own)})", *4 * (MISSING,)
    accuracy = _spread([100 * one.test_accuracy for one in own if one.test_accuracy is not None], ".1f")
    loss = _spread([end.train_loss for end in ends], ".3f")
    measures = (_spread([end.values[name] for end in ends], ".3g") for name in MEASURES)
    return method, f"`{message}`", sent, accuracy, loss, *measures


def _spread(values: Sequence[float], form: str) -> str:
    found = mean_estimate(values)
    return f"{found.mean:{form}}" + ("" if found.std is None else f" ± {found.std:{form}}")


def ratio_table(results: Sequence[Result]) -> Table:
    """Return how many times as sharp the compressed runs end, after equal rounds and at equal training loss."""
    known = {one[:4]: str(one) for one in ratios(results)}
    rows = [(method, f"`{message}`", *(known[method, message, *column] for column in COLUMNS.values()))
            for method, message in pairs(results) if message != FULL]  # fmt: skip
    return Table(("method", "message", *COLUMNS), rows)


def verdict_table(results: Sequence[Result]) -> Table:
    """Return for each message with how many methods the interval of the ratio says what."""
    found, rows = list(ratios(results)), []
    for message in dict.fromkeys(one.message for one in found):
        columns = ([one.verdict for one in found if one.message == message and one[2:4] == column and one.verdict]
                   for column in COLUMNS.values())  # fmt: skip
        rows.append((f"`{message}`", *(_counted(verdicts) for verdicts in columns)))
    return Table(("message", *COLUMNS), rows)


def _counted(verdicts: Sequence[str]) -> str:
    told = (f"{verdicts.count(one)} {one}" for one in ("sharper", "flatter", "in doubt") if one in verdicts)
    return ", ".join(told) or MISSING


def ratios(results: Sequence[Result]) -> Iterator[Ratio]:
    """Yield every ratio, paired by seed."""
    for method, message in pairs(results):
        full = {one.seed: one for one in of(results, method, FULL) if one.end is not None}
        own = {one.seed: one.end for one in of(results, method, message) if one.end is not None}
        for name in COMPARED if message != FULL else ():
            values = {seed: logarithm(end, name) for seed, end in own.items()}
            last = {seed: logarithm(one.end, name) for seed, one in full.items() if one.end is not None}
            same = {seed: found for seed, end in own.items() if seed in full
                    and (found := at_loss(full[seed].way, end.train_loss, name)) is not None}  # fmt: skip
            yield Ratio(method, message, name, False, difference(values, last))
            yield Ratio(method, message, name, True, difference(values, same))


def logarithm(measured: Measured, name: str) -> Logarithm:
    """Return the logarithm of a measure with its error."""
    return Logarithm(log(measured.values[name]), (measured.errors[name] or 0.0) / measured.values[name])


def at_loss(way: Sequence[Measured], loss: float, name: str) -> Logarithm | None:
    """Return the logarithm of a measure where a run first comes to this training loss; None if it is never there."""
    for before, after in pairwise(way):
        if after.train_loss <= loss <= before.train_loss:
            share = (before.train_loss - loss) / (before.train_loss - after.train_loss or 1.0)
            first, second = logarithm(before, name), logarithm(after, name)
            return Logarithm((1 - share) * first.value + share * second.value, max(first.error, second.error))
    return None


def difference(values: Mapping[int, Logarithm], others: Mapping[int, Logarithm]) -> Difference | None:
    """Return the mean difference by seed; its interval is no narrower than the errors of the measures allow."""
    found = paired_difference(*({seed: one.value for seed, one in some.items()} for some in (values, others)))
    if found is None or found.low is None or found.high is None:
        return found
    squares = [values[seed].error ** 2 + others[seed].error ** 2 for seed in values.keys() & others.keys()]
    half = sqrt(sum(squares)) / len(squares)
    return replace(found, low=min(found.low, found.mean - half), high=max(found.high, found.mean + half))


def largest_error(results: Sequence[Result]) -> str:
    """Return the largest error of a trace and of an eigenvalue, relative to it."""
    ends = [one.end for one in results if one.end is not None]
    shares = [100 * max(logarithm(end, name).error for end in ends) for name in COMPARED]
    return f"at most {shares[0]:.1f} % of a trace and {shares[1]:.1g} % of an eigenvalue."

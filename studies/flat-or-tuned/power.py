"""With which probability this study finds a lead of one point."""

from __future__ import annotations

from math import sqrt
from statistics import median

from scipy.stats import t as student

from benchmarks.tables import Table
from fedflat.experiments.statistics import CONFIDENCE, Difference

from ..inference import LEVEL, POWER, power
from .analysis import MARGIN, Contrast, Results
from .page import NOT_MEASURED, heading, kind_of_contrasts

TITLES = ("flat method", "plain base", "pairs", "deviation over seeds", "a lead of one point is found")
Powers = list[tuple[Contrast, Difference, float]]


def power_chapter(results: Results) -> str:
    """Return the probability for each tuned contrast that a lead of MARGIN is *held*."""
    found = {split: powers(results, split) for split in results.splits("tuned")}
    tables = [f"**{heading(split)}**\n\n{_table(some).markdown()}" for split, some in found.items() if some]
    return "\n\n".join(tables) or NOT_MEASURED


def power_sentence(results: Results) -> str:
    """Return for how many methods the power is what plans ask for, and the median."""
    found = {split: powers(results, split) for split in results.splits("tuned")}
    return "; ".join(_said(heading(split), some) for split, some in found.items() if some)


def powers(results: Results, split: str) -> Powers:
    """Return the tuned contrasts of a split with their power; none before its runs have ended.

    The level is that of the first step of Holm's correction.
    """
    if not results.have_ended(split, "tuned"):
        return []
    every = kind_of_contrasts(results, split, "tuned")
    return [(one, d, power(MARGIN, deviation(d), d.n, LEVEL / len(every)))
            for one in every if (d := one.difference) and d.n > 1]  # fmt: skip


def deviation(one: Difference) -> float:
    """Return the deviation of paired differences from their interval, with what the test set adds to it."""
    half = (one.high or one.mean) - one.mean
    return float(half / student.ppf((1 + CONFIDENCE) / 2, one.n - 1) * sqrt(one.n))


def _table(some: Powers) -> Table:
    rows = [(one.method, one.base, str(d.n), f"{100 * deviation(d):.2f}", f"{found:.2f}") for one, d, found in some]
    return Table(TITLES, rows)


def _said(where: str, some: Powers) -> str:
    enough = [one.method for one, _, found in some if found >= POWER]
    names = f" ({', '.join(enough)})" if enough else ""
    middle = median(found for *_, found in some)
    return (
        f"at {where} with a probability of at least {POWER:g} for {len(enough)} of {len(some)} flat methods{names}, "
        f"and of {middle:.2f} in the median"
    )

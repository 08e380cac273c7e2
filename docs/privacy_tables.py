"""The tables of docs/privacy.md, from what `python -m benchmarks.privacy` measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.privacy import Audit, PrivateRun
from benchmarks.tables import Table
from fedflat.experiments.statistics import mean_estimate

NOTHING = "–"  # not measured


def accuracy_table(runs: Sequence[PrivateRun], audits: Sequence[Audit]) -> Table:
    """Accuracy by method and epsilon, and below it the noise, and what is promised and proved of it."""
    targets = sorted({run.target for run in runs if run.target is not None}, reverse=True)
    columns = [None, *targets]
    rows = [
        (
            method,
            *(_accuracy(run for run in runs if (run.method, run.target) == (method, target)) for target in columns),
        )
        for method in dict.fromkeys(run.method for run in runs)
    ]
    of_target = {audit.target: audit for audit in audits}
    known = {run.target: run for run in runs}
    facts = [
        ("noise multiplier", [_text(known[target].noise_multiplier, 3) for target in targets]),
        ("epsilon of one client replaced", [_text(known[target].epsilon_replace_one, 2) for target in targets]),
        ("proved at least, by canaries",
         [_text(of_target[target].proved if target in of_target else None, 2) for target in targets]),
    ]  # fmt: skip
    rows += [(title, NOTHING, *cells) for title, cells in facts]
    return Table(("", "not private", *(f"epsilon {target:g}" for target in targets)), rows)


def audit_table(audits: Sequence[Audit]) -> Table:
    """Settings of which canaries prove much."""
    titles = ("rate", "noise", "rounds", "delta", "stated epsilon", "proved at least", "stated with twice the noise")
    return Table(titles, [
        (f"{one.rate:g}", f"{one.noise_multiplier:g}", str(one.rounds), f"{one.delta:g}",
         *(_text(x, 3) for x in (one.stated, one.proved, one.stated_twice)))
        for one in audits if one.target is None
    ])  # fmt: skip


def _accuracy(runs: Iterable[PrivateRun]) -> str:
    """Mean and standard deviation over seeds."""
    values = [run.accuracy for run in runs]
    if not values:
        return NOTHING
    found = mean_estimate(values)
    return f"{found.mean:.1f}" + (f" ± {found.std:.1f}" if found.std is not None else "")


def _text(x: float | None, digits: int) -> str:
    return NOTHING if x is None else f"{x:.{digits}f}"

"""The tables of docs/guards.md, from what `python -m benchmarks.attacks` measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.attacks import FEW, Row
from benchmarks.tables import Table

GUARDS = ("unguarded", "clip", "refuse")
SHARES = (10, 20, 30)
NOTHING = "–"  # not measured


def cell(rows: Iterable[Row]) -> str:
    """The mean accuracy of these runs over seeds, or what has ended one of them."""
    found = list(rows)
    known = [row.accuracy for row in found if row.accuracy is not None]
    if len(known) < len(found):
        return next(row.ended for row in found if row.ended)
    return f"{sum(known) / len(known):.1f}" if found else NOTHING


def attack_table(rows: Sequence[Row]) -> Table:
    """Accuracy by attack and method, for each share of attackers without a guard and with two."""
    some = [row for row in rows if row.recipe == "attacks" and row.method in FEW]
    attacks = [name for name in dict.fromkeys(row.attack for row in some) if name != "none"]
    return _by_share([(attack, method) for attack in attacks for method in FEW], some)


def method_table(rows: Sequence[Row]) -> Table:
    """The same of every method under the sign flip."""
    some = [row for row in rows if row.recipe == "attacks" and row.attack == "sign-flip"]
    return _by_share([("sign-flip", method) for method in dict.fromkeys(row.method for row in some)], some)


def _by_share(lines: Sequence[tuple[str, str]], rows: Sequence[Row]) -> Table:
    columns = [(share, guard) for share in SHARES for guard in GUARDS]
    titles = ("attack", "method", *(f"{share} %, {guard}" for share, guard in columns))
    return Table(titles, [
        (attack, method, *(
            cell(row for row in rows if (row.attack, row.method, row.share, row.guard) == (attack, method, *column))
            for column in columns
        ))
        for attack, method in lines
    ])  # fmt: skip


def cost_table(rows: Sequence[Row]) -> Table:
    """What guards cost where nobody attacks: the accuracy of each method, and what each guard changes."""
    honest = [row for row in rows if row.recipe == "attacks" and row.attack == "none"]
    lines = []
    for method in dict.fromkeys(row.method for row in honest):
        own = [row for row in honest if row.method == method]
        lines.append((method, cell(row for row in own if row.guard == "unguarded"),
                      *(_difference(own, guard) for guard in GUARDS[1:])))  # fmt: skip
    return Table(("method", "unguarded", "clip, points", "refuse, points"), lines)


def _difference(rows: Sequence[Row], guard: str) -> str:
    """How many points the guard changes, over the seeds that have both; or what has ended a run."""
    plain, with_it = ({row.seed: row for row in rows if row.guard == name} for name in ("unguarded", guard))
    both = [(with_it[seed], plain[seed]) for seed in plain if seed in with_it]
    if ended := [new.ended or old.ended for new, old in both if new.ended or old.ended]:
        return ended[0]
    changes = [(new.accuracy or 0.0) - (old.accuracy or 0.0) for new, old in both]
    return f"{sum(changes) / len(changes):+.1f}" if changes else NOTHING


def claims_table(rows: Sequence[Row]) -> Table:
    """Accuracy with attackers who claim samples that they do not have, with and without a limit on weights."""
    some = [row for row in rows if row.recipe == "inflated-claims"]
    columns = [(share, guard) for share in (0, *SHARES) for guard in ("unguarded", "limited")]
    lines = [
        (method, *(cell(row for row in some if (row.method, row.share, row.guard) == (method, *column))
                   for column in columns))
        for method in dict.fromkeys(row.method for row in some)
    ]  # fmt: skip
    return Table(("method", *(f"{share} %, {guard}" for share, guard in columns)), lines)


def worst_cost(rows: Sequence[Row]) -> str:
    """The largest cost of a guard without attackers, and whose runs one has ended, in a sentence or two."""
    cells = [(line[0], guard, text) for line in cost_table(rows).rows
             for guard, text in zip(GUARDS[1:], line[2:], strict=True) if text != NOTHING]  # fmt: skip
    measured = [(float(text), method, guard) for method, guard, text in cells if text[-1].isdigit()]
    if not measured:
        return "Not measured yet."
    change, method, guard = min(measured)
    above = sum(change < -1 for change, _, _ in measured)
    found = (f"Of {len(cells)} pairs of method and guard {above} cost more than one point; the most is {-change:.1f}, "
             f"{method} with `{guard}`.")  # fmt: skip
    ended = [f"{method} with `{guard}` ({text})" for method, guard, text in cells if not text[-1].isdigit()]
    return found + (f" The guard ended the run of {', '.join(ended)}." if ended else "")

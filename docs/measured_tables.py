"""Tables of what benchmarks measured, from the JSON and CSV files beside the pages that show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from pydantic import BaseModel

from benchmarks.attacks import FEW, Row
from benchmarks.growth import Cost
from benchmarks.measurement import Spread
from benchmarks.privacy import Audit, PrivateRun
from benchmarks.tables import MISSING, Table, pivot, seconds
from fedflat.experiments.statistics import mean_estimate

UNMEASURED = "Not measured yet."
GUARDS = ("unguarded", "clip", "refuse")
SHARES = (10, 20, 30)  # of attackers, in percent
MEGABYTE = 10**6
Content = dict[str, Any]


# docs/guards.md


def attack_table(rows: Sequence[Row]) -> Table:
    """Return accuracy by attack and method, for each share of attackers without a guard and with two."""
    some = [row for row in rows if row.recipe == "attacks" and row.method in FEW]
    attacks = [name for name in dict.fromkeys(row.attack for row in some) if name != "none"]
    return _by_share([(attack, method) for attack in attacks for method in FEW], some)


def method_table(rows: Sequence[Row]) -> Table:
    """Return the same of every method under the sign flip."""
    some = [row for row in rows if row.recipe == "attacks" and row.attack == "sign-flip"]
    return _by_share([("sign-flip", method) for method in dict.fromkeys(row.method for row in some)], some)


def _by_share(lines: Sequence[tuple[str, str]], rows: Sequence[Row]) -> Table:
    columns = {f"{share} %, {guard}": (share, guard) for share in SHARES for guard in GUARDS}
    return pivot(("attack", "method"), lines, columns, lambda line, column: _accuracy(
        row for row in rows if (row.attack, row.method, row.share, row.guard) == (*line, *column)
    ))  # fmt: skip


def guard_cost_table(rows: Sequence[Row]) -> Table:
    """Return the accuracy of each method without attackers, and how many points each guard changes."""
    honest = [row for row in rows if row.recipe == "attacks" and row.attack == "none"]
    lines = []
    for method in dict.fromkeys(row.method for row in honest):
        own = [row for row in honest if row.method == method]
        plain = _accuracy(row for row in own if row.guard == "unguarded")
        lines.append((method, plain, *(_difference(own, guard) for guard in GUARDS[1:])))
    return Table(("method", "unguarded", "clip, points", "refuse, points"), lines)


def claims_table(rows: Sequence[Row]) -> Table:
    """Return accuracy with attackers who claim samples that they do not have, with and without a limit on weights."""
    some = [row for row in rows if row.recipe == "inflated-claims"]
    columns = {f"{share} %, {guard}": (share, guard) for share in (0, *SHARES) for guard in ("unguarded", "limited")}
    lines = [(method,) for method in dict.fromkeys(row.method for row in some)]
    return pivot(("method",), lines, columns, lambda line, column: _accuracy(
        row for row in some if (row.method, row.share, row.guard) == (*line, *column)
    ))  # fmt: skip


def worst_cost(rows: Sequence[Row]) -> str:
    """Return a sentence with the largest cost of a guard without attackers, and one with the runs that guards ended."""
    cells = [(line[0], guard, text) for line in guard_cost_table(rows).rows
             for guard, text in zip(GUARDS[1:], line[2:], strict=True) if text != MISSING]  # fmt: skip
    measured = [(float(text), method, guard) for method, guard, text in cells if text[-1].isdigit()]
    if not measured:
        return UNMEASURED
    change, method, guard = min(measured)
    above = sum(change < -1 for change, _, _ in measured)
    found = (f"Of {len(cells)} pairs of method and guard {above} cost more than one point; the most is {-change:.1f}, "
             f"{method} with `{guard}`.")  # fmt: skip
    ended = [f"{method} with `{guard}` ({text})" for method, guard, text in cells if not text[-1].isdigit()]
    return found + (f" The guard ended the run of {', '.join(ended)}." if ended else "")


def _accuracy(rows: Iterable[Row]) -> str:
    """Return the mean accuracy of these runs over seeds, or what ended one of them."""
    found = list(rows)
    known = [row.accuracy for row in found if row.accuracy is not None]
    if len(known) < len(found):
        return next(row.ended for row in found if row.ended)
    return f"{sum(known) / len(known):.1f}" if found else MISSING


def _difference(rows: Sequence[Row], guard: str) -> str:
    """Return how many points the guard changes, over the seeds that have both; or what ended a run."""
    plain, with_it = ({row.seed: row for row in rows if row.guard == name} for name in ("unguarded", guard))
    both = [(with_it[seed], plain[seed]) for seed in plain if seed in with_it]
    if ended := [new.ended or old.ended for new, old in both if new.ended or old.ended]:
        return ended[0]
    changes = [(new.accuracy or 0.0) - (old.accuracy or 0.0) for new, old in both]
    return f"{sum(changes) / len(changes):+.1f}" if changes else MISSING


# docs/privacy.md


def private_accuracy_table(runs: Sequence[PrivateRun], audits: Sequence[Audit]) -> Table:
    """Return accuracy by method and epsilon, and below it the noise, and what is promised and proved of it."""
    targets = sorted({run.target for run in runs if run.target is not None}, reverse=True)
    columns = {"not private": None} | {f"epsilon {target:g}": target for target in targets}
    methods = [(method,) for method in dict.fromkeys(run.method for run in runs)]
    table = pivot(("",), methods, columns, lambda line, target: _mean(
        run for run in runs if (run.method, run.target) == (*line, target)
    ))  # fmt: skip
    known, of_target = {run.target: run for run in runs}, {audit.target: audit for audit in audits}
    proved = [_text(of_target[target].proved if target in of_target else None, 2) for target in targets]
    table.rows.extend([
        ("noise multiplier", MISSING, *(_text(known[target].noise_multiplier, 3) for target in targets)),
        ("epsilon of one client replaced", MISSING,
         *(_text(known[target].epsilon_replace_one, 2) for target in targets)),
        ("proved at least, by canaries", MISSING, *proved),
    ])  # fmt: skip
    return table


def audit_table(audits: Sequence[Audit]) -> Table:
    """Return the settings of which canaries prove much."""
    titles = ("rate", "noise", "rounds", "delta", "stated epsilon", "proved at least", "stated with twice the noise")
    return Table(titles, [
        (f"{one.rate:g}", f"{one.noise_multiplier:g}", str(one.rounds), f"{one.delta:g}",
         *(_text(x, 3) for x in (one.stated, one.proved, one.stated_twice)))
        for one in audits if one.target is None
    ])  # fmt: skip


def network_audit_table(found: Mapping[str, Any]) -> Table:
    """Return what the canaries of a federation over a network show."""
    titles = (
        "trials",
        "of them vanished",
        "shift of a canary",
        "noise",
        "stated",
        "epsilon proved",
        "stated for a round",
    )
    return Table(titles, [
        (str(found["trials"]), str(found["vanished"]), _with_interval(found["shift"]), _with_interval(found["noise"]),
         f"1 and {found['stated_noise']:g}", _text(found["proved"], 2), _text(found["stated"], 2))
    ])  # fmt: skip


def _with_interval(values: Sequence[float]) -> str:
    return f"{values[0]:.2f} [{values[1]:.2f}, {values[2]:.2f}]"


def _mean(runs: Iterable[PrivateRun]) -> str:
    """Return mean and standard deviation over seeds."""
    values = [run.accuracy for run in runs]
    if not values:
        return MISSING
    found = mean_estimate(values)
    return f"{found.mean:.1f}" + (f" ± {found.std:.1f}" if found.std is not None else "")


def _text(x: float | None, digits: int) -> str:
    return MISSING if x is None else f"{x:.{digits}f}"


# docs/deploy.md


def settings_table(section: type[BaseModel]) -> Table:
    """Return the keys of a section of a configuration, as its file spells them."""
    rows = []
    for name, info in section.model_fields.items():
        default = "" if info.default in (None, "", []) or info.is_required() else f"`{str(info.default).lower()}`"
        rows.append((f"`{info.alias or name}`", default, info.description or ""))
    return Table(("key", "default", "meaning"), rows)


def federation_cost_table(content: Content) -> Table:
    """Return seconds of a round for models of several sizes."""
    return Table(("model", "parameters", "a round"), [
        (size, f"{case['parameters']:,}", _seconds(case["seconds"])) for size, case in content["rounds"].items()
    ])  # fmt: skip


def beside_flower_table(content: Content) -> Table:
    """Return seconds of a round of plain Flower and of fedflat, with the ratio of all turns and of each."""
    titles = ("clients", "model", "parameters", "plain Flower", "fedflat", "ratio", "load")
    return Table(titles, [_beside(case) for case in content["beside"].values()])


def _beside(case: Content) -> tuple[str, ...]:
    sides = [case["flower"], case["fedflat"]]
    plain, ours = [Spread.of([time for turn in turns for time in turn]) for turns in sides]
    ratios = sorted(median(ours) / median(plain) for plain, ours in zip(*sides, strict=True))
    ratio = f"{ours.median / plain.median:.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]"
    load = f"{min(case['load']):.0f} to {max(case['load']):.0f}"
    return str(case["clients"]), case["size"], f"{case['parameters']:,}", seconds(plain), seconds(ours), ratio, load


def kills_table(content: Content) -> Table:
    """Return runs in whose third round a program was killed."""
    titles = ("killed in round 2", "rounds lost", "longest round, beside usual", "missing", "final model")
    return Table(titles, [_kill(name, case) for name, case in content["kills"].items()])


def _kill(name: str, case: Content) -> tuple[str, ...]:
    missing = "; ".join(
        f"round {t}: {client} ({why})" for t, who in case["missing"].items() for client, why in who.items()
    )
    times = f"{case['longest_seconds']:.0f} s, {case['usual_seconds']:.0f} s"
    model = "as without" if case["equal"] else "another, as one answer less"
    return name, str(case["asked"] - case["rounds"]), times, missing or "nobody", model


# docs/ranks.md


def rank_rounds_table(content: Content) -> Table:
    """Return seconds of a round for one process, its workers, ranks and a plain loop, with their ratios."""
    found = {name: Spread.of(times) for name, times in content["rounds"].items()}
    alone = found["one process"].median
    rows = [(name, seconds(spread), f"{alone / spread.median:.2f}") for name, spread in found.items()]
    return Table(("who", "a round of W1 by the clock", "times as fast as one process"), rows)


def aggregation_table(content: Content) -> Table:
    """Return seconds of exact and plain sums of eight clients' vectors."""
    titles = ("parameters", "ranks", "exact sum", "plain sum, single precision", "ratio")
    return Table(titles, [_sums(case) for case in content["aggregation"]])


def _sums(case: Content) -> tuple[str, ...]:
    exact, plain = Spread.of(case["exact"]), Spread.of(case["plain"])
    ratio = f"{exact.median / plain.median:.1f}"
    return f"{case['size']:,}", str(case["ranks"]), seconds(exact), seconds(plain), ratio


# docs/secure_sum.md


def secure_sums_table(content: Content) -> Table:
    """Return processor seconds and bytes of a sum, for several numbers of clients."""
    titles = ("a round of", "a client", "the server", "a client sends", "without", "it gets besides the model")
    rows = []
    for name, found in content["sums"].items():
        times = (_seconds([one[who] for one in found]) for who in ("client_seconds", "server_seconds"))
        sent, received, plain = (
            max(one[what] for one in found) for what in ("sent_bytes", "received_bytes", "plain_bytes")
        )
        sizes = f"{sent / MEGABYTE:.1f} MB", f"{plain / MEGABYTE:.1f} MB", f"{received / 1000:.1f} kB"
        rows.append((name, *times, *sizes))
    return Table(titles, rows)


def secure_rounds_table(content: Content) -> Table:
    """Return seconds of rounds over the network, with and without a secure sum."""
    rows = [(f"{which} `secure-sum`", _seconds(case["seconds"])) for which, case in content["rounds"].items()]
    return Table(("", "a round"), rows)


def _seconds(times: Sequence[float]) -> str:
    return seconds(Spread.of(times))


# docs/performance.md


def growth_table(costs: Sequence[Cost]) -> Table:
    """Return every point of the figure of growth in numbers."""
    titles = ("what grows", "value", "method", "executor", "seconds of a round", "peak memory, MB", "set-up")
    return Table(titles, [
        (cost.axis, f"{cost.value:,}", cost.method, cost.executor, seconds(cost.wall),
         MISSING if cost.peak is None else f"{cost.peak / 1e6:.0f}", seconds(cost.setup))
        for cost in costs
    ])  # fmt: skip


# docs/durability.md and docs/tests.md


def trials_table(content: Content) -> Table:
    """Return how often each trial was made, and what was lost or wrong."""
    titles = ("trial", "the audit: tried, survived, lost", "tried now", "survived", "lost or wrong")
    return Table(titles, [
        (row["name"], row["audit"], f"{row['tried']:,}", f"{row['tried'] - len(row['wrong']):,}",
         "; ".join(row["wrong"]))
        for row in content["trials"]
    ])  # fmt: skip


def defects_table(content: Content) -> Table:
    """Return every planted defect with the test that caught it, before and after."""
    return Table(("room", "defect", "before, caught by", "after, caught by"), [
        (row["room"], row["what"], *(_caught_by(row.get(when)) for when in ("before", "after")))
        for row in content["defects"] if "before" in row or "after" in row
    ])  # fmt: skip


OUTCOME = ("passed", "failed", "skipped", "seconds")


def versions_table(content: Content) -> Table:
    """Return what became of the fast tests with other versions, and which failed."""
    titles = ("Python", "torch", "NumPy", "system", *OUTCOME)
    return Table(titles, [
        (row["python"], row["torch"], row["numpy"], row["system"], *_outcome(row)) for row in content["pairs"]
    ])  # fmt: skip


def flower_table(content: Content) -> Table:
    """Return what became of all tests of federations with each version of Flower, and which failed."""
    titles = ("flwr", "Python", "torch", "system", *OUTCOME)
    return Table(titles, [
        (row["flwr"], row["python"], row["torch"], row["system"], *_outcome(row)) for row in content["flower"]
    ])  # fmt: skip


def _outcome(row: Content) -> tuple[str, ...]:
    failed = ", ".join([str(row["failed"]), *(f"`{name.rpartition('/')[2]}`" for name in row["failures"])])
    return f"{row['passed']:,}", failed, str(row["skipped"]), f"{row['seconds']:,}"


def _caught_by(outcome: Content | None) -> str:
    """Return the test that caught a defect, without its folder; for a defect that was not caught, what was run."""
    if outcome is None:
        return "?"
    test = outcome["caught_by"]
    return f"`{test.rpartition('/')[2]}`" if test else f"- ({outcome['tried']})"


# docs/howto/model_parts.md


def normalisation_table(content: Mapping[str, Any]) -> Table:
    """Return the accuracies of a network with each normalisation, by method, from the rows of a comparison."""
    methods = list(dict.fromkeys(row["method"].partition("(")[0] for row in content["rows"]))
    titles = ["normalisation"]
    for method in methods:
        titles += [f"{method}, test accuracy %", "own models %"]
    cells: dict[str, list[str]] = {}
    for row in content["rows"]:
        found = (row["test_accuracy"], row["personal_accuracy_mean"])
        cells.setdefault(row["normalisation"], []).extend("" if x is None else f"{100 * x:.1f}" for x in found)
    return Table(tuple(titles), [(name, *found) for name, found in cells.items()])

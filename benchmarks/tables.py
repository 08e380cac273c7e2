"""What a benchmark has measured, as tables: the targets, all times, and the other frameworks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table as ConsoleTable

from fedflat.reports.text_table import literal

from .measurement import Measurement, Spread
from .results import Results
from .targets import TARGETS, Quantity, Ratio, Target, VectorShare
from .vectors import PREFIX as VECTORS

MISSING = "–"
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))  # of seconds


@dataclass(frozen=True)
class Table:
    """Titles and cells, for a console or a page."""

    titles: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def for_console(self) -> ConsoleTable:
        """Return the table for rich."""
        table = ConsoleTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for title in self.titles:
            table.add_column(literal(title))
        for row in self.rows:
            table.add_row(*map(literal, row))
        return table

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.titles, tuple("---" for _ in self.titles), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pivot(
    titles: tuple[str, ...],
    lines: Iterable[tuple[str, ...]],
    columns: Mapping[str, Any],
    cell: Callable[[tuple[str, ...], Any], str],
) -> Table:
    """Return a table with a row for each of `lines`: its own cells, then `cell(line, column)` for each column.

    titles: of the cells of `lines`. columns: what `cell` is given, by title.
    """
    rows = [(*line, *(cell(line, column) for column in columns.values())) for line in lines]
    return Table((*titles, *columns), rows)


def target_table(results: Results, targets: Sequence[Target] = TARGETS, measured_only: bool = False) -> Table:
    """Return every target with what was measured; a target whose measurements are missing says so, or is left out."""
    titles = ("row", "work", "quantity", "median [least, most]", "n", "target", "goal", "reached")
    shown = [target for target in targets if not measured_only or target.quantity.of(results.measured)]
    return Table(titles, [_target_row(results, target) for target in shown])


def target_table_of_days(days: Sequence[Results], targets: Sequence[Target] = TARGETS) -> Table:
    """Return every target with what was measured on the first of several days that has all of its numbers.

    A ratio never has its two sides from different days.
    """
    rows = []
    for target in targets:
        day = next((one for one in days if target.quantity.of(one.measured)), days[0])
        known = target.quantity.of(day.measured) is not None
        rows.append((*_target_row(day, target), day_of(day, target.work) if known else MISSING))
    return Table((*target_table(days[0], []).titles, "day"), rows)


def other_frameworks_table(days: Sequence[Results], targets: Sequence[Target] = TARGETS) -> Table:
    """Return how many times as long other frameworks take as ours: each ratio of the first day that has both sides."""
    titles = ("work", "other framework", "ours", "its seconds / ours, median [least, most]", "n", "day")
    return Table(titles, sorted(row for target in targets for row in _beside_other(days, target.quantity)))


def _beside_other(days: Sequence[Results], quantity: Quantity) -> Iterable[tuple[str, ...]]:
    """Yield the row of a quantity, if it is a ratio with another framework that was measured."""
    for day in days:
        value = quantity.of(day.measured)
        over = day.measured.find(*quantity.over) if isinstance(quantity, Ratio) and value else None
        if over and value and isinstance(quantity, Ratio) and "peer" in over.facts:
            clock = " (by the clock)" if quantity.kind == "wall" else ""
            work, ours = quantity.under
            yield work, over.name, ours + clock, spread(value), str(value.n), day_of(day, work)
            return


def day_of(results: Results, work: str) -> str:
    """Return the date on which a work was measured."""
    return str(results.parts[work]["begin"]["at"])[:10] if work in results.parts else MISSING


def joined_days(days: Sequence[Results]) -> Results:
    """Return all measurements; of those with the same work and name, that of the first day that has it."""
    found: dict[tuple[str, str], Measurement] = {}
    for one in (one for day in days for one in day.every):
        found.setdefault((one.part, one.name), one)
    return Results(days[0].settings, days[0].parts, list(found.values()))


def _target_row(results: Results, target: Target) -> tuple[str, ...]:
    quantity = target.quantity
    value = quantity.of(results.measured)
    words = [str(target.row), target.work, str(quantity)]
    aims = [_aim(target, goal) for goal in (target.target, target.stretch)]
    if value is None:
        return (*words, MISSING, MISSING, *aims, "not measured")
    return (*words, f"{spread(value)} {quantity.unit}".strip(), str(value.n), *aims, _verdict(target, value))


def _aim(target: Target, goal: float | None) -> str:
    if goal is None:
        return MISSING
    return f"{'≥' if target.at_least else '≤'} {number(goal)} {target.quantity.unit}".strip()


def _verdict(target: Target, value: Spread) -> str:
    if not target.met(value.median, target.target):
        return "no"
    return "goal" if target.stretch is not None and target.met(value.median, target.stretch) else "target"


def times_table(results: Results) -> Table:
    """Return all times of all parts, but vector work, which has a table of its own."""
    titles = ("work", "who", "for one", "processor seconds", "seconds by the clock", "n", "how")
    chosen = [one for one in results.every if one.wall and not one.name.startswith(VECTORS)]
    return Table(titles, [(one.part, one.name, one.per, *_times(one), _how(one)) for one in chosen])


def _times(one: Measurement) -> tuple[str, str, str]:
    cpu, wall = (seconds(Spread.of(values)) if values else MISSING for values in (one.cpu, one.wall))
    return cpu, wall, str(len(one.wall))


def _how(one: Measurement) -> str:
    """Return the facts that set implementations apart."""
    shown = ("executor", "layout", "allocator", "clients timed", "workers", "version", "threads")
    facts = {name: one.facts[name] for name in shown if one.facts.get(name) is not None}
    return ", ".join(str(value) if isinstance(value, str) else f"{name} {value}" for name, value in facts.items())


def vectors_table(results: Results) -> Table:
    """Return the vector work of a local step of every method, in per cent of two gradients."""
    workloads = [target.quantity for target in TARGETS if isinstance(target.quantity, VectorShare)]
    shares = {quantity.part: quantity.shares(results.measured) for quantity in workloads}
    methods = dict.fromkeys(method for each in shares.values() for method in each)
    columns = {f"{part}, %": each for part, each in shares.items()}
    return pivot(("method",), [(method,) for method in methods], columns,
                 lambda line, each: spread(each[line[0]]) if line[0] in each else MISSING)  # fmt: skip


def peers_table(results: Results) -> Table:
    """Return what the times of other frameworks include."""
    titles = ("framework", "version", "work", "method", "includes", "scaled")
    peers = [one for one in results.every if "peer" in one.facts]
    return Table(titles, [_peer_row(one) for one in peers])


def _peer_row(one: Measurement) -> tuple[str, ...]:
    facts = [one.facts.get(name) for name in ("version", "method", "includes", "scaled")]
    version, method, includes, scaled = (str(fact) if fact else MISSING for fact in facts)
    return one.facts["peer"], version, one.part, method, includes, scaled


def circumstances(results: Results) -> str:
    """Return the machine, versions and settings in one paragraph."""
    settings, machine = results.settings, results.settings["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in settings["versions"].items() if version)
    loads = [moment["load"] for part in results.parts.values() for moment in (part["begin"], part["end"])]
    busy = f"; load at most {max(loads):.1f}" if loads and None not in loads else ""
    quick = "; shortened (`--quick`)" if settings["quick"] else ""
    features = ", ".join(machine["features"]) or "no vector extensions"
    return (
        f"{machine['processor']}, {machine['cores']} cores ({features}), {machine['libc']}; {versions}; "
        f"threads {settings['threads']}, repeats {settings['repeats']}{busy}{quick}."
    )


def spread(value: Spread) -> str:
    """Return median, least and most."""
    return f"{number(value.median)} [{number(value.low)}, {number(value.high)}]"


def seconds(value: Spread | float) -> str:
    """Return one time, or several, in a unit that fits."""
    middle = value.median if isinstance(value, Spread) else value
    size, unit = next((each for each in UNITS if middle >= each[0]), UNITS[-1])
    figures = spread(value.times(1 / size)) if isinstance(value, Spread) else number(value / size)
    return f"{figures} {unit}"


def number(x: float) -> str:
    """Return a number with three digits."""
    return f"{x:.0f}" if abs(x) >= 1000 else f"{x:.3g}"

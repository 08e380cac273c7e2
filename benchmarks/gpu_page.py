"""What `python -m benchmarks.gpu` has found, as the section of docs/tests.md."""

from __future__ import annotations

from typing import Any

from .measurement import Measurement, Spread, ratio
from .results import Results
from .tables import MISSING, Table, circumstances, number, seconds, spread

MEGABYTE = 10**6
PLAIN = "bare-tuned"
ONE_BY_ONE = "FedAvg sequential"
MEMORY = (
    "Within a workload all take turns, and ratios are those of medians, with the least and the most of one turn. Peaks "
    "of memory are those of setting up and one round: on a GPU of the tensors there, on the CPU of a process."
)
WORDS = {True: "yes", False: "NO", None: MISSING}
UNMEASURED = (
    "Not measured yet: no GPU was available to the makers of fedflat. Run the command above, and please report the "
    "file that it writes."
)


def page_part(results: Results | None) -> str:
    """Return machine, parts, findings and times; without results, that there are none."""
    if results is None:
        return UNMEASURED
    tables = [parts_table(results), findings_table(results), times_table(results)]
    return "\n\n".join([where(results), *(table.markdown() for table in tables), MEMORY])


def where(results: Results) -> str:
    """Return device, machine and versions in one paragraph."""
    device = results.settings["device"]
    words = [device["name"], f"CUDA {device['cuda'] or 'none'}", *(f"driver {x}" for x in [device.get("driver")] if x)]
    return f"{', '.join(words)}; {circumstances(results)}"


def parts_table(results: Results) -> Table:
    """Return how every part ended, and how many of its checks passed."""
    rows = []
    for name, facts in results.parts.items():
        checks = [one["passed"] for one in facts["findings"] if one["passed"] is not None]
        passed = f"{sum(checks)} of {len(checks)}" if checks else MISSING
        rows.append((name, facts["ended"], passed, "<br>".join(facts["notes"]) or MISSING))
    return _table(("part", "ended", "checks passed", "notes"), rows)


def findings_table(results: Results) -> Table:
    """Return everything that was found in words."""
    rows = [(name, one["what"], WORDS[one["passed"]], one["text"])
            for name, facts in results.parts.items() for one in facts["findings"]]  # fmt: skip
    return _table(("part", "what", "passed", "found"), rows)


def times_table(results: Results) -> Table:
    """Return seconds of rounds, beside the plain loop and beside one client at a time, and peaks of memory."""
    titles = ("part", "who", "executor", "a round by the clock", "times the plain loop", "times one client at a time",
              "n", "peak memory")  # fmt: skip
    return _table(titles, [_time_row(results, one) for one in results.every])


def _time_row(results: Results, one: Measurement) -> tuple[str, ...]:
    others = [results.measured.find(one.part, name) for name in (PLAIN, ONE_BY_ONE)]
    ratios = [ratio(one, other, "wall") if other else None for other in others]
    memory = f"{number(one.bytes[0] / MEGABYTE)} MB" if one.bytes else MISSING
    return (one.part, one.name, str(one.facts.get("executor", MISSING)), seconds(Spread.of(one.wall)),
            *(spread(found) if found else MISSING for found in ratios), str(len(one.wall)), memory)  # fmt: skip


def _table(titles: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Table:
    """Return a table of cells whose bars do not end them."""
    return Table(titles, [tuple(cell.replace("|", "\\|") for cell in row) for row in rows])

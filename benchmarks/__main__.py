"""`python -m benchmarks`: what rounds cost here, against plain PyTorch and against the targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.status import Status

from fedflat.cli.console import FAILED, Console, in_one_line
from fedflat.core.native_libraries import tune_allocator
from fedflat.reports.text_table import literal

from . import growth as growing
from .against import compare, comparison_table
from .growth_figure import write_growth
from .parts import chosen
from .peer_results import read_peers
from .results import Results, Settings, started
from .suite import measure
from .tables import circumstances, target_table, times_table
from .timing import Progress

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


@app.command("benchmarks")
def bench(
    parts: Annotated[
        list[str] | None, typer.Argument(help="W1 to W5, W1a, 'W1 vectors', store, ...; default all.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Times of everybody; default 7, or 3 if quick.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each process.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter rounds; a minute or two for a work.")] = False,
    peers: Annotated[
        list[Path] | None, typer.Option(help="JSON file of a script in benchmarks/peers; may repeat.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the results; parts are added to it.")] = None,
    growth: Annotated[
        Path | None,
        typer.Option(help="Instead: cost against clients, cohort, model, steps, workers, into this folder."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="COMMIT", help="Instead: W2, W2-512, W3 and W5 beside a commit; exit code 1 if slower."),
    ] = None,
) -> None:
    """Time rounds of the workloads against plain PyTorch loops, in turns, and compare with the targets.

    python -m benchmarks W2 W3 --quick

    python -m benchmarks --against HEAD~1

    python -m benchmarks --peers peers.json --out docs/performance.json

    The machine should have nothing else to do. docs/performance.md says what the workloads and the ratios are.
    """
    console = Console()
    settings = Settings(repeats or (3 if quick else 7), threads, quick)
    if growth is not None:
        return _grow(console, settings, growth)
    if against is not None:
        return _compare(console, settings, against, parts or [])
    names = chosen(parts or [])
    found = [one for file in peers or () for one in read_peers(file)]
    before = started(settings, out).with_peers(found)
    with console.doing() as status:
        results = measure(names, settings, before, out, shown_on(status))
    _show(console, results, measured_only=bool(parts))


def _show(console: Console, results: Results, measured_only: bool) -> None:
    console.show(times_table(results).for_console())
    console.show(target_table(results, measured_only=measured_only).for_console())
    console.say(circumstances(results))


def _compare(console: Console, settings: Settings, commit: str, names: list[str]) -> None:
    """Compare this checkout with a commit. Exit with code 1 if it is slower on one of the works."""
    with console.doing() as status:
        found = compare(commit, names, settings, shown_on(status))
    console.show(comparison_table(commit, found).for_console())
    if any(one.verdict == "slower" for one in found):
        raise typer.Exit(FAILED)


def _grow(console: Console, settings: Settings, folder: Path) -> None:
    """Measure every point in a process of its own, and write the figure."""
    with console.doing() as status:
        points = growing.measure(settings, shown_on(status))
    for path in write_growth(points, settings, folder):
        console.say(f"written: {path}")


def shown_on(status: Status) -> Progress:
    """Return a callback that shows on a line what is timed."""
    return lambda who, done, total: status.update(literal(f"{who} {done + 1}/{total}"))


def main() -> None:
    """Measure; what cannot be done ends with one line and a non-zero exit."""
    with in_one_line():
        tune_allocator()
        app(prog_name="python -m benchmarks")


if __name__ == "__main__":
    main()

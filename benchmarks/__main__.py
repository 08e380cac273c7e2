"""`python -m benchmarks`: what rounds cost here, against plain PyTorch and against the targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedflat.cli.console import Console, in_one_line
from fedflat.core.native_libraries import tune_allocator
from fedflat.reports.text_table import literal

from . import growth as growing
from .growth_figure import write_growth
from .parts import chosen
from .peer_results import read_peers
from .results import Results, Settings, started
from .suite import measure
from .tables import circumstances, target_table, times_table

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
) -> None:
    """Time rounds of the workloads against plain PyTorch loops, in turns, and compare with the targets.

    python -m benchmarks W2 W3 --quick

    python -m benchmarks --peers peers.json --out docs/performance.json

    The machine should have nothing else to do. docs/performance.md says what the workloads and the ratios are.
    """
    console = Console()
    settings = Settings(repeats or (3 if quick else 7), threads, quick)
    if growth is not None:
        return _grow(console, settings, growth)
    names = chosen(parts or [])
    found = [one for file in peers or () for one in read_peers(file)]
    before = started(settings, out).with_peers(found)
    with console.doing() as status:
        results = measure(
            names, settings, before, out, lambda who, done, total: status.update(literal(f"{who} {done + 1}/{total}"))
        )
    _show(console, results, measured_only=bool(parts))


def _show(console: Console, results: Results, measured_only: bool) -> None:
    console.show(times_table(results).for_console())
    console.show(target_table(results, measured_only=measured_only).for_console())
    console.say(circumstances(results))


def _grow(console: Console, settings: Settings, folder: Path) -> None:
    """Measure every point in a process of its own, and write the figure."""
    with console.doing() as status:
        points = growing.measure(settings, lambda who, done, total: status.update(literal(f"{who} {done + 1}/{total}")))
    for path in write_growth(points, settings, folder):
        console.say(f"written: {path}")


def main() -> None:
    """Measure; what cannot be done ends with one line and a non-zero exit."""
    with in_one_line():
        tune_allocator()
        app(prog_name="python -m benchmarks")


if __name__ == "__main__":
    main()

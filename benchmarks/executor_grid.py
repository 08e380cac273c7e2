"""Every executor, the plain loop and the choice of `auto`, for small and medium dense models.

    python -m benchmarks.executor_grid [--method FedAvg] [--hidden 200] [--batch 10] [--repeats 5] [--out FILE]

W2 with other widths and batches. Times are processor seconds of a client's local step in a round of ten clients, the
server's share included, taken in turns; the machine should have nothing else to do. `auto` is asked for a short run
(10 rounds of 300 steps) and for a long one (1,000 rounds), several times each.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import process_time
from typing import Any

import torch

from fedflat.core.native_libraries import tune_allocator
from fedflat.files import write_atomically

from .bare_loop import BareLoop
from .implementations import Ours
from .measurement import Spread
from .results import machine
from .tables import Table, number
from .timing import Prepared, in_turns
from .workloads import WORKLOADS, Workload

METHODS = ("FedAvg", "FedSAM")
HIDDEN, BATCHES = (64, 200, 512), (10, 32, 64)
EXECUTORS = ("sequential", "stacked", "compiled")
PLAIN = "plain loop"
LENGTHS = {"short": 10, "long": 1000}  # rounds of 300 steps
STEPS = 30  # of a client in a timed round
RHO = 0.1  # of the plain loop; times do not depend on it
ASKED = 3  # how often `auto` is asked


@dataclass(frozen=True)
class Cell:
    """A method, a width and a batch size."""

    method: str
    hidden: int
    batch: int
    microseconds: Mapping[str, Mapping[str, float]]  # of a local step, by executor or plain loop: a `Spread`
    compiling: float  # processor seconds of compiling a step
    chosen: Mapping[str, Mapping[str, int]]  # by length of the run: how often `auto` chose each executor
    asking: Mapping[str, float]  # processor seconds of the most expensive choice

    def seconds(self, name: str, length: str) -> float:
        """Return the seconds of a run with one executor or the plain loop, with those of compiling."""
        steps = LENGTHS[length] * WORKLOADS["W2"].steps * WORKLOADS["W2"].cohort
        return 1e-6 * self.microseconds[name]["median"] * steps + self.compiling * (name == "compiled")

    def of_auto(self, length: str) -> tuple[str, float, float]:
        """Return the most frequent choice of `auto`, and its seconds over those of the best executor and the loop."""
        choice = max(self.chosen[length], key=lambda name: self.chosen[length][name])
        mine = self.seconds(choice, length)
        return choice, mine / min(self.seconds(name, length) for name in EXECUTORS), mine / self.seconds(PLAIN, length)


def measured(method: str, hidden: int, batch: int, repeats: int) -> Cell:
    """Return the times of all, and the choices of `auto`."""
    work = replace(WORKLOADS["W2"], options={"hidden": (hidden,)}, batch=batch, steps=STEPS)
    loop = BareLoop(work, channels_last=False, rho=RHO if method == "FedSAM" else 0.0)
    prepared = {PLAIN: Prepared(lambda: loop.round(work.cohort), share=STEPS * work.cohort)}
    for name in EXECUTORS:
        round_ = Ours(work, method, executor=name).simulation(work.cohort).round
        prepared[name] = Prepared(round_, share=STEPS * work.cohort)
    started = process_time()
    prepared["compiled"].run()
    compiling = process_time() - started
    times = in_turns({name: one.time for name, one in prepared.items()}, repeats, warm_ups=1)
    spreads = {name: Spread.of([1e6 * processor for processor, _ in some]) for name, some in times.items()}
    asked = {length: [asked_for(work, method, rounds) for _ in range(ASKED)] for length, rounds in LENGTHS.items()}
    return Cell(
        method, hidden, batch, {name: asdict(one) for name, one in spreads.items()}, compiling,
        {length: dict(Counter(name for name, _ in found)) for length, found in asked.items()},
        {length: max(took for _, took in found) for length, found in asked.items()},
    )  # fmt: skip


def asked_for(work: Workload, method: str, rounds: int) -> tuple[str, float]:
    """Return what `auto` chooses for a run of `rounds` rounds of 300 steps, and the processor seconds of the choice."""
    whole = replace(work, steps=WORKLOADS["W2"].steps)
    simulation = Ours(whole, method).simulation(work.cohort, rounds)
    started = process_time()
    name = simulation.choice.name
    return name, process_time() - started


def grid_table(content: Mapping[str, Any]) -> Table:
    """Return a row for each cell: microseconds of a step, and what `auto` chose in a short and in a long run."""
    titles = ["method", "hidden", "batch", PLAIN, *EXECUTORS]
    for length in LENGTHS:
        titles += [f"{length}: auto", "/ best", "/ plain"]
    rows = []
    for cell in (Cell(**one) for one in content["cells"]):
        times = (number(cell.microseconds[name]["median"]) for name in (PLAIN, *EXECUTORS))
        choices = (x for length in LENGTHS for x in described(cell, length))
        rows.append((cell.method, str(cell.hidden), str(cell.batch), *times, *choices))
    return Table(tuple(titles), rows)


def described(cell: Cell, length: str) -> tuple[str, str, str]:
    """Return the choice of `auto`, how often it was made if not always, and the two ratios."""
    choice, of_best, of_plain = cell.of_auto(length)
    often, asked = cell.chosen[length][choice], sum(cell.chosen[length].values())
    return choice + (f" ({often} of {asked})" if often < asked else ""), f"{of_best:.2f}", f"{of_plain:.2f}"


def keep(file: Path, cell: Cell) -> None:
    """Write a cell to `file`, in place of an earlier one of the same method, width and batch."""
    known = json.loads(file.read_text())["cells"] if file.exists() else []
    cells = {(one["method"], one["hidden"], one["batch"]): one for one in [*known, asdict(cell)]}
    text = json.dumps({"machine": machine(), "cells": [cells[key] for key in sorted(cells)]}, indent=1) + "\n"
    write_atomically(file, lambda path: path.write_text(text))


def main() -> None:
    """Measure the cells that are asked for, one after another, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, action="append", help="by default both")
    parser.add_argument("--hidden", type=int, action="append", help=f"width; by default {HIDDEN}")
    parser.add_argument("--batch", type=int, action="append", help=f"batch size; by default {BATCHES}")
    parser.add_argument("--repeats", type=int, default=5, help="times of everybody")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to write every cell to; others in it stay")
    given = parser.parse_args()
    torch.set_num_threads(1)
    tune_allocator()
    for method in given.method or METHODS:
        for hidden in given.hidden or HIDDEN:
            for batch in given.batch or BATCHES:
                cell = measured(method, hidden, batch, given.repeats)
                print(*grid_table({"cells": [asdict(cell)]}).rows[0], f"compiling {cell.compiling:.1f} s",
                      f"asking {cell.asking['short']:.1f} and {cell.asking['long']:.1f} s", flush=True)  # fmt: skip
                if given.out:
                    keep(given.out, cell)


if __name__ == "__main__":
    main()

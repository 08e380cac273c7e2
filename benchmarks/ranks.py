"""What ranks cost and gain: a round of W1 by several, and exact sums beside plain ones, over collectives.

python -m benchmarks.ranks --repeats 5 --out docs/ranks.json

Every time has processes of its own, in turns; the machine should have nothing else to do. The tables are in
docs/ranks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.implementations import Bare, Ours
from benchmarks.results import machine
from benchmarks.workloads import WORKLOADS
from fedflat.core.native_libraries import tune_allocator
from fedflat.engine.ranks import Ranks, joined
from fedflat.methods import find
from fedflat.rounds.aggregation import RunningMean

W1 = replace(WORKLOADS["W1"], timed=10, timed_bare=10)
CLIENTS = 8  # in a round of which only the aggregation is timed
SIZES = (1_100_000, 11_000_000)  # parameters
CASES = {  # who takes a round of W1: (ranks, threads of each, what)
    "one process": (0, 1, "ours"),
    "one process, 2 workers": (0, 1, "workers"),
    "2 ranks": (2, 1, "ours"),
    "plain loop, 1 thread": (0, 1, "bare"),
    "plain loop, 2 threads": (0, 2, "bare"),
}


def main() -> None:
    """Measure, or, as one of the processes that this starts, take one time."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5, help="times of everybody")
    arguments.add_argument("--out", type=Path, help="JSON file for the results")
    arguments.add_argument("--take", help=argparse.SUPPRESS)
    arguments.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.take:
        return take(json.loads(given.take), given.into)
    content = {"machine": machine(), "rounds": rounds(given.repeats), "aggregation": aggregations(given.repeats)}
    text = json.dumps(content, indent=1) + "\n"
    given.out.write_text(text) if given.out else print(text)


def rounds(repeats: int) -> dict[str, list[float]]:
    """Return seconds of a round of W1 by the clock, for every case."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for turn in range(repeats):
        for name, (ranks, threads, what) in CASES.items():
            found[name].append(started(ranks, threads, {"what": what})[0])
            print(f"round {turn + 1} of {repeats}, {name}: {found[name][-1]:.2f} s", file=sys.stderr)
    return found


def aggregations(repeats: int) -> list[dict[str, Any]]:
    """Return seconds to add up eight clients' vectors, exactly and plainly, for sizes and numbers of ranks."""
    found = []
    for size in SIZES:
        for ranks in (1, 2, 4):
            exact, plain = zip(*started(ranks, 1, {"what": "sums", "size": size, "repeats": repeats}), strict=True)
            found.append({"size": size, "ranks": ranks, "exact": exact, "plain": plain})
            print(f"{size:,} parameters, {ranks} ranks: {min(exact):.3f} and {min(plain):.3f} s", file=sys.stderr)
    return found


def started(ranks: int, threads: int, what: dict[str, Any]) -> Any:
    """Return what `take` leaves, in one process or as ranks of torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "result.json"
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        command = command_of("benchmarks.ranks", ranks, what, into)
        subprocess.run(command, check=True, timeout=1800, env=environment)  # noqa: S603 (this interpreter and file)
        return json.loads(into.read_text())


def command_of(module: str, ranks: int, what: dict[str, Any], into: Path) -> list[str]:
    """Return the command that has `module` take `what` and leave it in `into`, in one process or as ranks of torchrun.

    The module is named, not its file, whose folder would then be searched for modules in place of the checkout.
    """
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    return [sys.executable, *torchrun, "-m", module, "--take", json.dumps(what), "--into", str(into)]


def take(what: dict[str, Any], into: Path) -> None:
    """Take one time, in a process of its own."""
    tune_allocator()
    with joined() as ranks:
        taken = sums(ranks, what["size"], what["repeats"]) if what["what"] == "sums" else [a_round(ranks, what["what"])]
        if ranks.index == 0:
            into.write_text(json.dumps(taken))


def a_round(ranks: Ranks, what: str) -> float:
    """Return seconds of the second round."""
    if what == "bare":
        prepared = Bare(W1, channels_last=True, tuned=True).prepare()
    else:
        prepared = Ours(W1, "FedAvg", workers=2 if what == "workers" else 1, ranks=ranks).prepare()
    prepared.run()
    seconds = prepared.time()[1]
    prepared.close()
    return seconds


def sums(ranks: Ranks, size: int, repeats: int) -> list[tuple[float, float]]:
    """Return seconds of exact and of plain sums, in turns, after one of each."""
    mine = torch.randn(CLIENTS // ranks.number, size)
    both = [(exact(ranks, mine), plain(mine)) for _ in range(repeats + 1)]
    return both[1:]


def exact(ranks: Ranks, mine: torch.Tensor) -> float:
    """Return seconds until every rank has the mean, client after client, as the engine sums."""
    dist.barrier()
    begin = perf_counter()
    method, one = find("FedAvg")(), torch.ones(1, 1)
    mean = RunningMean(method, mine[0])
    for row in mine:
        mean.add(method.mean(delta=row[None]), one, one)
    ranks.add_up(mean, torch.zeros(CLIENTS))
    mean.value()
    return perf_counter() - begin


def plain(mine: torch.Tensor) -> float:
    """Return the same with sums in single precision, whose bits depend on who adds what."""
    dist.barrier()
    begin = perf_counter()
    total = torch.zeros_like(mine[0])
    for row in mine:
        total.add_(row, alpha=1 / CLIENTS)
    dist.all_reduce(total)
    return perf_counter() - begin


if __name__ == "__main__":
    main()

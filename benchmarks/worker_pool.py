"""What worker processes gain and cost: speed with two of them, their start, their memory, and the end of one by a kill.

    git worktree add /tmp/before ad61b80        # or any other version to compare with
    python -m benchmarks.worker_pool --version before=/tmp/before/src --version after=src [--repeats 5] [--out FILE]

The versions take turns, each in a process of its own. Within a turn rounds with one and with two workers alternate, so
that other load on the machine slows down both; the load is reported. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch

from fedflat.engine.simulation import Simulation
from fedflat.methods import find

from .workloads import WORKLOADS, Workload

ROOT = Path(__file__).parents[1]
TRAINING = replace(WORKLOADS["W1"], cohort=8, steps=2, pool=20_000)  # 246 MB of samples
TINY = replace(WORKLOADS["W3"], cohort=100, steps=1)  # a task takes a millisecond or less
PAIRS = 3  # rounds with one worker and with two, in a turn


def simulation(work: Workload, workers: int) -> Simulation:
    """A simulation of `work` in which every client is a task of its own."""
    return Simulation(work.module(), work.data(), find("FedAvg")(), work.client(), rounds=10**6,
                      participation=work.cohort, device="cpu", executor="sequential", workers=workers)  # fmt: skip


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """How long `run` takes, by the clock; and the processor seconds of this process and its children."""
    clock, used = perf_counter(), processor_seconds()
    run()
    return perf_counter() - clock, processor_seconds() - used


def children() -> list[int]:
    """The process numbers of this process's children, and of theirs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if state not in "ZX":
            parents[int(path.parent.name)] = int(parent)
    found = [os.getpid()]
    for process in found:
        found += [one for one, parent in parents.items() if parent == process]
    return found[1:]


def processor_seconds() -> float:
    """What this process and its children have used so far. Ticks of 10 ms for each child."""
    stats = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children()]
    return process_time() + sum(int(ticks) for stat in stats for ticks in stat[11:13]) / os.sysconf("SC_CLK_TCK")


def megabytes(process: int) -> dict[str, float]:
    """The memory of a process: `own`, which no other process has mapped, and `share`, its part of all."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {name: int(value.split()[0]) for name, value in (line.split(":") for line in lines)}
    return {
        "own": (kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]) / 1000,
        "share": kilobytes["Pss"] / 1000,
    }


def of_training() -> dict[str, float]:
    """Speed with one and two workers, memory, and a round in which a worker is killed."""
    found: dict[str, float] = {}
    with simulation(TRAINING, 1) as one, simulation(TRAINING, 2) as two:
        one.round()
        two.round()
        times = [(*seconds(one.round), *seconds(two.round)) for _ in range(PAIRS)]
        found["round, 1 worker: s"], used, usual, used_by_two = map(median, zip(*times, strict=True))
        found["round, 2 workers: s"] = usual
        found["speed of 2 workers"] = median(x[0] / x[2] for x in times)
        # What the clock would show if two processors did nothing else, and the workers never waited.
        found["speed of 2 workers by processor time"] = 2 * used / used_by_two
        memory = {process: megabytes(process) for process in children()}
        workers = [process for process, sizes in memory.items() if sizes["share"] > 50]  # not helpers of a library
        found["processes"] = len(memory)
        found["own memory of a worker: MB"] = median(memory[process]["own"] for process in workers)
        found["memory of all children: MB"] = sum(sizes["share"] for sizes in memory.values())
        killer = threading.Timer(usual / 2, os.kill, (workers[0], signal.SIGKILL))
        killer.start()
        found["round, a worker killed: s"], _ = seconds(two.round)
        one.round()
        found["bits equal"] = float(torch.equal(one.w, two.w))
    return found


def of_tasks() -> dict[str, float]:
    """What it costs to start two workers, and what a task costs beside its work."""
    with simulation(TINY, 1) as one, simulation(TINY, 2) as two:
        one.round()
        first, used = seconds(two.round)
        times = [(*seconds(one.round), *seconds(two.round)) for _ in range(3 * PAIRS)]
        per_task = [1e3 * median(x) / TINY.cohort for x in zip(*times, strict=True)]
    return {
        "first round with workers: s": first,
        "processor time of a worker's start: s": used / 2,
        "small task, 1 worker: ms": per_task[0],
        "small task, 2 workers: ms": per_task[2],
        "small task, 1 worker: processor ms": per_task[1],
        "small task, 2 workers: processor ms": per_task[3],
    }


def main() -> None:
    """Print a row for each figure: the median, the least and the most of each version's turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="append", metavar="NAME=SRC", help="a version: its name, its folder `src`")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each version")
    parser.add_argument("--out", type=Path, help="where to write all figures, as JSON")
    parser.add_argument("--measure", action="store_true", help="print this version's figures as JSON")
    given = parser.parse_args()
    if given.measure:
        torch.set_num_threads(1)
        print(json.dumps(of_tasks() | of_training()))
        return
    versions = dict(pair.split("=", 1) for pair in given.version or [f"this={ROOT / 'src'}"])
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    for _ in range(given.repeats):
        for name, source in versions.items():
            environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(source).resolve()), str(ROOT)])}
            command = [sys.executable, "-m", "benchmarks.worker_pool", "--measure"]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603
            turns[name].append(json.loads(done.stdout) | {"load of the machine": os.getloadavg()[0]})
    if given.out:
        given.out.write_text(json.dumps(turns, indent=2) + "\n")
    print(f"{'':40}" + "".join(f"{name:>28}" for name in versions))
    for what in next(iter(turns.values()))[0]:
        row = [sorted(turn[what] for turn in turns[name]) for name in versions]
        print(f"{what:40}" + "".join(f"{median(x):12.2f} [{x[0]:.2f}, {x[-1]:.2f}]".rjust(28) for x in row))


if __name__ == "__main__":
    main()

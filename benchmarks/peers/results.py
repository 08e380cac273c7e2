"""The command line, the table and the file of results, as all scripts of this folder have them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import torch
from tasks import Task
from timing import Laps
from torch import Tensor

NOT_INSTALLED = 2  # exit code


@dataclass(frozen=True)
class Result:
    """What a round of one work took one peer; one number per repeat."""

    peer: str
    version: str
    work: str
    method: str
    threads: int  # of every process
    seconds: list[float]  # of the processor, all processes of the peer together
    wall: list[float]
    steps: float  # local steps per client, counted
    scaled: str | None  # what the seconds were multiplied by
    includes: str  # augmentation, evaluation, loading
    moved: float  # length of the whole run's way, over that of the first model: it has trained

    def __str__(self) -> str:
        """Return its line of the table."""
        spread = f"{median(self.seconds):.4g} [{min(self.seconds):.4g} {max(self.seconds):.4g}]"
        head = f"{self.work:<9}{self.method:<10}{spread:>30}{median(self.wall):>12.4g}"
        return f"{head}{self.steps:>7g}{self.moved:>9.2g}  {self.scaled or ''}"


HEAD = f"{'work':<9}{'method':<10}{'CPU s per round':>30}{'wall s':>12}{'steps':>7}{'moved':>9}  scaled"


@dataclass(frozen=True)
class Run:
    """One simulation: a warm-up round, then `repeats` times `rounds` rounds."""

    task: Task
    rounds: int
    repeats: int
    threads: int

    @classmethod
    def of(cls, name: str, asked: argparse.Namespace) -> Run:
        """Return what is asked for the work `name`."""
        torch.manual_seed(0)
        task = Task.of(name, asked.clients)
        return cls(task, asked.rounds or task.work.rounds, asked.repeats, asked.threads)

    @property
    def all_rounds(self) -> int:
        """The warm-up and all that are timed."""
        return 1 + self.rounds * self.repeats

    def figures(self, laps: Laps, before: Tensor, after: Tensor) -> dict[str, Any]:
        """Return what was found, as fields of `Result`; `before` and `after` (d,) are the first and the final model."""
        if laps.rounds != self.all_rounds:
            raise RuntimeError(f"{laps.rounds} rounds were timed instead of {self.all_rounds}")
        seconds, wall = ([self.task.factor * value for value in values] for values in laps.seconds(self.rounds))
        moved = float((after - before).norm() / before.norm())
        steps = laps.steps / self.task.cohort
        shared = {"threads": self.threads, "steps": steps, "scaled": self.task.scaled, "moved": moved}
        return {"seconds": seconds, "wall": wall} | shared


def parser(description: str, workloads: Iterable[str] = ("W1", "W2", "W3", "W5")) -> argparse.ArgumentParser:
    """Return the command line that all scripts have."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--workloads", nargs="+", default=list(workloads), choices=list(workloads))
    made.add_argument("--rounds", type=int, help="rounds that make one figure, their mean (default: fedflat's own)")
    made.add_argument("--repeats", type=int, default=5, help="figures per work (default 5)")
    made.add_argument("--threads", type=int, default=1, help="of every process (default 1)")
    made.add_argument("--clients", type=int, help="that train in a round, seconds are scaled (default: fedflat's own)")
    made.add_argument("--out", type=Path, help="JSON file for the results")
    return made


def installed(peer: str, package: str, install: str) -> str:
    """Return the version of the Python package `package`.

    Without it, the program ends and tells how to `install` it.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        missing(f"{peer} is not installed: pip install '{install}'")


def missing(why: str) -> NoReturn:
    """End the program, as there is nothing to time."""
    print(why, file=sys.stderr)
    raise SystemExit(NOT_INSTALLED)


def report(asked: argparse.Namespace, time: Callable[[str], Iterable[Result]]) -> None:
    """Time every work that is asked for, print a line for each and write the file."""
    torch.set_num_threads(asked.threads)
    results: list[Result] = []
    for name in asked.workloads:
        for result in time(name):
            if not results:
                print(f"{result.peer} {result.version}, torch {torch.__version__}\n{HEAD}")
            print(result, flush=True)
            results.append(result)
    if asked.out:
        asked.out.write_text(json.dumps({"results": [asdict(result) for result in results]}, indent=1) + "\n")

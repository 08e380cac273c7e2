"""Rounds of this checkout beside those of a commit, in turns: what a change costs or saves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self
from zipfile import ZipFile

from fedflat.core.errors import InputError

from .measurement import Spread
from .results import Settings
from .tables import Table, seconds, spread
from .timing import Progress, Seconds, in_turns, no_progress
from .workloads import WORKLOADS, Workload

ROOT = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("timed_rounds.py")
W2 = replace(WORKLOADS["W2"], steps=100)
WORKS: dict[str, Workload] = {
    "W2": W2,
    "W2-512": replace(W2, title="MLP 784-512-10", options={"hidden": (512,)}, steps=40),
    "W3": WORKLOADS["W3"],
    "W5": WORKLOADS["W5"],
}
TOLERATED = 1.05  # a difference that is smaller in any turn may be noise


@dataclass(frozen=True)
class Comparison:
    """A round of one work: seconds of this checkout divided by those of the commit, turn by turn."""

    work: str
    executors: tuple[str, str]  # of this checkout and of the commit
    seconds: tuple[float, float]  # medians
    ratio: Spread

    @property
    def verdict(self) -> str:
        """What all turns agree on."""
        if self.ratio.low > TOLERATED:
            return "slower"
        return "faster" if self.ratio.high < 1 / TOLERATED else "no difference seen"


class Rounds:
    """A process that computes rounds of a work with the package in `source`, when it is asked to."""

    def __init__(self, source: Path, work: Workload) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, SCRIPT], env=environment, text=True,  # noqa: S603
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        self._source = source
        self.executor: str = self._ask(json.dumps(asdict(work)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def time(self) -> Seconds:
        """Return the processor seconds of a round; by the clock nothing is measured."""
        return self._ask("again"), 0.0

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None  # noqa: S101 (for the type checker)
        assert self._process.stdout is not None  # noqa: S101
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it has ended, and its output says so
            pass
        if not (answer := self._process.stdout.readline()):
            self._process.communicate()
            raise RuntimeError(f"rounds with {self._source} have ended; the reason is above")
        return json.loads(answer)


def compare(commit: str, names: Sequence[str], settings: Settings, told: Progress = no_progress) -> list[Comparison]:
    """Time this checkout and `commit` in turns on the works called `names`, by default all.

    Raises InputError for a commit or a name that is unknown.
    """
    for name in names:
        if name not in WORKS:
            raise InputError(f"--against times {', '.join(WORKS)}, and not {name!r}")
    with tempfile.TemporaryDirectory() as folder:
        sources = ROOT / "src", unpacked(commit, Path(folder))
        return [_compared(name, sources, settings, told) for name in WORKS if name in names or not names]


def unpacked(commit: str, folder: Path) -> Path:
    """Write the source of `commit` into `folder`; return what has to be on the path."""
    known = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if known.returncode:
        raise InputError(f"--against: git knows no commit {commit!r} in {ROOT}")
    archive = folder / "source.zip"
    _git("archive", f"--output={archive}", known.stdout.strip(), "src").check_returncode()
    with ZipFile(archive) as source:
        source.extractall(folder)
    return folder / "src"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603, S607


def _compared(name: str, sources: tuple[Path, Path], settings: Settings, told: Progress) -> Comparison:
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(Rounds(source, WORKS[name])) for source in sources)
        timers = {"this checkout": ours.time, "the commit": theirs.time}
        times = in_turns(timers, settings.repeats, told=lambda who, *numbers: told(f"{name}: {who}", *numbers))
    mine, others = ([processor for processor, _ in one] for one in times.values())
    medians = Spread.of(mine).median, Spread.of(others).median
    ratio = Spread.of([a / b for a, b in zip(mine, others, strict=True)])
    return Comparison(name, (ours.executor, theirs.executor), medians, ratio)


def comparison_table(commit: str, comparisons: Sequence[Comparison]) -> Table:
    """Return a row for each work."""
    titles = ("work", "executor", f"of {commit}", "a round", f"of {commit}", "ratio [least, most]", "turns",
              "this checkout is")  # fmt: skip
    rows = [
        (one.work, *one.executors, *map(seconds, one.seconds), spread(one.ratio), str(one.ratio.n), one.verdict)
        for one in comparisons
    ]
    return Table(titles, rows)

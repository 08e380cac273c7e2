"""Runs that are killed, or whose disk is full or loses power, at any file operation: no saved round is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from support.effort import chosen, effort, in_test_all

TESTS = Path(__file__).parent.parent
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds the paths of open files in /proc"),
    pytest.mark.usefixtures("forked_processes"),
]


def wrong(mode: str, store: str, ranks: int, every: int, folder: Path) -> dict[int, str]:
    """The points of `support.durability` at which something was lost, with the problem; at least three are tried."""
    command = [sys.executable, "-m", "support.durability", mode, store, str(ranks), str(every), str(folder)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tried = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(tried) >= 3
    return {number: problem for number, problem in tried if problem}


STORES = ["memory", "file"]
MODES = ["kill", "full"]


@pytest.mark.parametrize(
    ("mode", "store"), chosen([("kill", "file"), ("full", "memory")], list(product(MODES, STORES)))
)
def test_stopped_before_any_file_operation_it_leaves_the_same_files(mode: str, store: str, tmp_path: Path) -> None:
    """A run that was killed, or whose disk was full, and was started again has the files of an undisturbed run."""
    assert wrong(mode, store, 0, effort(47, 1), tmp_path) == {}


@pytest.mark.parametrize(("kind", "every"), [("search", 113), ("study", 47)])
def test_so_does_a_search_and_a_study_and_what_a_kill_leaves_is_not_damaged(
    kind: str, every: int, tmp_path: Path
) -> None:
    assert wrong("kill", kind, 0, effort(every, 1), tmp_path) == {}


@in_test_all
@pytest.mark.parametrize(("ranks", "store"), list(product([1, 2, 3], STORES)))
def test_so_it_is_with_ranks(store: str, ranks: int, tmp_path: Path) -> None:
    """Rank 0, which writes, is killed; records above the budget are in files of every rank."""
    assert wrong("kill", store, ranks, effort(59, 5), tmp_path) == {}


@pytest.mark.parametrize("store", chosen(["file"], STORES))
def test_after_a_power_failure_what_was_said_to_be_saved_is(store: str, tmp_path: Path) -> None:
    """Each write and each name that was not flushed is on disk or not, at random."""
    assert wrong("power", store, 0, effort(83, 1), tmp_path) == {}

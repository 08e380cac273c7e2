"""Ranks of one machine: who has connected is one of them, or none is trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.engine import local_ranks
from fedflat.engine.local_ranks import FOLDER, meeting_place

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_processes")]

PROGRAM = """
from fedflat.engine.ranks import RankError, joined
try:
    with joined(20.0) as ranks:
        print("joined", ranks.index, ranks.total(1))
except RankError as error:
    print(error)
"""


def started(folder: Path, rank: int) -> subprocess.Popen[str]:
    variables = {FOLDER: str(folder), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # fmt: skip
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=os.environ | variables, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="ranks end with the process that started them, on Linux")
@pytest.mark.parametrize("knows_the_key", [True, False])
def test_who_does_not_know_the_key_is_no_rank(tmp_path: Path, knows_the_key: bool) -> None:
    """The second rank has the first one's store, and, in one case, a key of its own."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with meeting_place(tmp_path / name):
            pass
    (tmp_path / "second" / f"{local_ranks.STORE}-0").symlink_to(tmp_path / "first" / f"{local_ranks.STORE}-0")
    folders = [tmp_path / "first", tmp_path / ("first" if knows_the_key else "second")]
    ranks = [started(folder, rank) for rank, folder in enumerate(folders)]
    said = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    if knows_the_key:
        assert said == ["joined 0 2", "joined 1 2"]
    else:
        assert said == [
            f"rank {i}: the process that connected as rank {1 - i} is no rank of this run" for i in range(2)
        ]


@pytest.mark.parametrize("before", [None, "elsewhere"])
def test_ranks_started_later_are_not_told_of_a_folder_that_is_gone(
    tmp_path: Path, before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    if before:
        monkeypatch.setenv(FOLDER, before)
    failure = ExitStack()
    failure.enter_context(meeting_place(tmp_path))
    assert os.environ[FOLDER] == str(tmp_path)
    failure.__exit__(InputError, InputError("the ranks failed"), None)
    assert os.environ.get(FOLDER) == before

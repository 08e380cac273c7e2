"""The programs that were started here are ended, also after a crash, and no other program is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedflat.federation.launch import orphan_reaper
from fedflat.federation.launch.processes import TOKEN_VARIABLE, Processes
from support.flower_fixtures import wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc")


@pytest.mark.slow
@linux
def test_programs_that_a_killed_process_has_left_are_ended_by_the_next(tmp_path: Path) -> None:
    """Even if its reaper was killed too. A program that a user runs with the same home is not ended."""
    processes = Processes(tmp_path)
    home = {"FLWR_HOME": str(processes.home)}
    ignoring = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
    left = subprocess.Popen(
        ignoring, env={**os.environ, **home, TOKEN_VARIABLE: "a process that has ended"}, start_new_session=True
    )
    users = subprocess.Popen(ignoring, env={**os.environ, **home}, start_new_session=True)
    try:
        wait_for("both programs", lambda: len(orphan_reaper.find_processes(f"FLWR_HOME={processes.home}")) == 2)
        time.sleep(0.3)
        processes.prepare()
        assert left.wait(1) == -signal.SIGKILL
        assert users.poll() is None
        processes.stop()
        assert users.poll() is None
    finally:
        for one in (left, users):
            one.kill()
            one.wait()


@pytest.mark.slow
@linux
def test_stopping_ends_the_programs_that_were_started_here_and_no_others(tmp_path: Path) -> None:
    """Two with the same home, as in earlier versions, where two could run in one folder."""
    one, other = Processes(tmp_path), Processes(tmp_path)
    sleeping = ["import time; time.sleep(600)"]
    one.prepare()
    first = subprocess.Popen([sys.executable, "-c", *sleeping], env=one.environment, start_new_session=True)
    try:
        wait_for("the program", lambda: one.remaining() == [first.pid])
        assert other.remaining() == []
        other.stop()
        assert first.poll() is None
        one.stop()
        assert first.wait(5) < 0
    finally:
        first.kill()
        first.wait()

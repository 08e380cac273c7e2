"""A process for each message of a client: the next one waits without a token, and ends with its SuperExec."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedflat.federation.flower import client_process
from fedflat.federation.flower.client_process import ClientProcess, ClientProcesses
from fedflat.federation.flower.internals import TaskExecutor
from fedflat.federation.flower.superexec import ApprovedTasks
from support.flower_fixtures import wait_for

# Writes its process and its token to the file that its first argument names.
NOTING = """
import os, pathlib, sys
sys.stdin.read()
with open(sys.argv[1], "a") as file:
    print(os.getpid(), pathlib.Path(sys.argv[-1]).read_text() or "none", file=file)
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that were started, of a small program."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments, **named):
        processes.append(real(*arguments, **named))
        return processes[-1]

    real = subprocess.Popen
    monkeypatch.setattr(client_process, "PROGRAM", ("-c", NOTING))
    monkeypatch.setattr(client_process.subprocess, "Popen", start)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def noted(path: Path, number: int) -> list[list[str]]:
    """Wait for `number` processes to have noted their tokens; return the notes."""
    wait_for("the notes", lambda: path.exists() and path.read_text().count("\n") == number)
    return [line.split() for line in path.read_text().splitlines()]


def test_each_message_has_a_process_of_its_own_and_the_next_one_is_started_early(started, tmp_path: Path) -> None:
    path, clients = tmp_path / "notes", ClientProcesses()
    clients.run([str(path)], "first")
    noted(path, 1)
    started[0].wait()
    clients.prepare()
    clients.prepare()  # one is enough
    assert len(started) == 2
    clients.run([str(path)], "second")
    assert noted(path, 2) == [[str(started[0].pid), "first"], [str(started[1].pid), "second"]]
    assert len(started) == 2


def test_none_is_started_before_a_message_or_beside_a_running_one(started, tmp_path: Path) -> None:
    clients = ClientProcesses()
    clients.prepare()
    assert started == []
    running = ClientProcess([str(tmp_path / "notes")])  # it has no token yet, so it runs
    clients._running.append(running)
    clients.prepare()
    assert len(started) == 1
    running.close()


@pytest.mark.parametrize("lost", ["killed", "for other arguments"])
def test_a_waiting_process_that_cannot_take_the_message_is_replaced(started, tmp_path: Path, lost: str) -> None:
    path, clients = tmp_path / "notes", ClientProcesses()
    clients.run([str(path)], "first")
    started[0].wait()
    clients.prepare()
    if lost == "killed":
        started[1].kill()
        started[1].wait()
    clients.run([str(path), *["--insecure"] * (lost != "killed")], "second")
    tokens = [token for _, token in noted(path, 2 if lost == "killed" else 3)]
    assert sorted(tokens) == ["first", *["none"] * (lost != "killed"), "second"]
    assert len(started) == 3


def test_the_waiting_process_ends_with_the_executor(started, tmp_path: Path) -> None:
    path, tasks = tmp_path / "notes", ApprovedTasks(frozenset())
    executor = TaskExecutor(tasks)
    tasks._clients.run([str(path)], "first")
    started[0].wait()
    executor.reconcile()
    executor.close()
    assert started[1].wait(10) == 0
    assert [token for _, token in noted(path, 2)] == ["first", "none"]


def test_the_token_is_not_on_the_command_line(started, tmp_path: Path) -> None:
    ClientProcesses().run([str(tmp_path / "notes")], "secret")
    [process] = started
    assert str(tmp_path / "notes") in process.args
    assert [word for word in process.args if "secret" in word] == []


@pytest.mark.parametrize("updated", [False, True])
def test_a_process_whose_packages_are_updated_begins_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, updated: bool
) -> None:
    class Waiting:
        """Waits until another version of fedflat is installed."""

        def read(self) -> None:
            if updated:
                (tmp_path / "fedflat-99.dist-info").mkdir()
                (tmp_path / "fedflat-99.dist-info" / "METADATA").write_text("Name: fedflat\nVersion: 99\n")

    begun: list[list[str]] = []
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(client_process, "_imported", lambda: lambda: None)
    monkeypatch.setattr(client_process.sys, "stdin", Waiting())
    monkeypatch.setattr(client_process.sys, "argv", ["", "--token-file", "/dev/null"])
    monkeypatch.setattr(client_process.os, "execv", lambda program, words: begun.append(words))
    client_process.main()
    assert begun == [sys.orig_argv] * updated


@pytest.mark.slow
def test_a_process_without_a_token_ends_without_an_error() -> None:
    command = [sys.executable, *client_process.PROGRAM, "--token-file", "/dev/null"]
    process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert process.stderr == process.stdout == b""

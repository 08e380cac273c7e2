"""A SuperExec starts approved apps alone, and no other user sees the tokens of their tasks."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus

from fedflat.federation.flower import superexec
from fedflat.federation.flower.approved_apps import checked_digests
from fedflat.federation.flower.client_process import ClientProcesses
from fedflat.federation.flower.internals import TaskExecutor
from fedflat.federation.flower.superexec import ApprovedTasks, private_file
from fedflat.federation.flower.supernode import run_supernode
from support.flower_fixtures import failing

APPROVED = "a" * 64
TOKEN = "d0" * 16
SPEC = ExecutionSpec(
    task_type=TaskType.SERVER_APP, runtime_api_address="127.0.0.1:1", token=TOKEN, insecure=False,
    root_certificates_path="ca.crt", runtime_dependency_install=False, parent_pid=1, suppress_output=True, task_id=1,
    fab_hash=APPROVED,
)  # fmt: skip


def executor(*approved: str) -> TaskExecutor:
    return TaskExecutor(ApprovedTasks(frozenset(approved)))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that are started; nothing is."""
    commands: list[list[str]] = []
    monkeypatch.setattr(superexec.subprocess, "Popen", lambda words, **_: commands.append(words))
    return commands


@pytest.mark.parametrize("fab_hash", [None, "", "b" * 64, f"sha256:{APPROVED}"])
def test_a_server_app_that_is_not_approved_is_not_started(started: list[list[str]], fab_hash: str | None) -> None:
    result = executor(f"sha256:{APPROVED}").launch(replace(SPEC, fab_hash=fab_hash))
    assert result.status is LaunchResultStatus.FAILED
    assert f"runs only sha256:{APPROVED}" in result.message
    assert started == []


@pytest.mark.parametrize("insecure", [False, True])
def test_an_approved_one_is_started_and_its_token_is_not_on_the_command_line(
    started: list[list[str]], insecure: bool
) -> None:
    spec = replace(SPEC, insecure=insecure)
    assert executor(f"sha256:{APPROVED}").launch(spec).status is LaunchResultStatus.ACCEPTED
    [words] = started
    assert Path(words[0]).name == spec.task_type
    assert [word for word in words if TOKEN in word] == []
    assert ("--insecure" in words, "--root-certificates" in words) == (insecure, not insecure)


def test_a_client_is_started_with_its_token_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[list[str], str]] = []
    monkeypatch.setattr(ClientProcesses, "run", lambda self, words, token: runs.append((words, token)))
    executor().launch(replace(SPEC, task_type=TaskType.CLIENT_APP, fab_hash=None, insecure=True))
    assert runs == [(["--runtime-api-address", "127.0.0.1:1", "--insecure", "--parent-pid", "1"], TOKEN)]


def test_only_apps_are_started() -> None:
    """Flower's SuperExec also runs agents, models and connectors, which no federation here has."""
    kinds, _ = executor().get_eligible_capacity(set(TaskType))
    assert kinds == {TaskType.SERVER_APP, TaskType.CLIENT_APP}


@pytest.mark.slow
def test_a_process_reads_its_token_where_flower_does() -> None:
    """As `--token-file` is read: it must be a file, and is opened anew."""
    program = "import os, pathlib, sys; print(os.path.isfile(sys.argv[1]), pathlib.Path(sys.argv[1]).read_text())"
    with private_file(TOKEN.encode()) as token:
        done = subprocess.run([sys.executable, "-c", program, f"/dev/fd/{token}"], pass_fds=[token], text=True,
                              capture_output=True, check=True)  # fmt: skip
    assert done.stdout.split() == ["True", TOKEN]


@pytest.mark.parametrize("word", ["--isolation", "--isolation=subprocess", "--superexec-auth-secret-file"])
def test_how_a_node_is_guarded_is_not_for_arguments(word: str) -> None:
    with failing(ValueError, "cannot be given: a node starts its own SuperExec"):
        run_supernode([f"sha256:{APPROVED}"], [word, "process"])


def test_what_is_no_digest_is_refused() -> None:
    for digests, line in (([], "--app-digest is missing"), (["sha256:x"], "must be sha256: and 64")):
        with failing(ValueError, line):
            checked_digests(digests)

"""`flower run` as a process: one in a folder at a time, and nothing is running after it, however it ends."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.approved_apps import app_digest, archive
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch import orphan_reaper
from fedflat.federation.launch.local_federation import CONNECTION, LocalFederation, SubmittedRun, local_deployment
from fedflat.federation.launch.processes import OFFLINE
from fedflat.files import locked
from support.effort import effort, in_test_all
from support.flower_attacks import Attacker, readable
from support.flower_fixtures import events_of, failing, study_of, wait_for
from support.fork_server import fork_server, forking
from support.local_user import (
    as_other_user,
    command_line,
    documented_listeners,
    listening_sockets,
    needs_two_users,
)
from support.network_monitor import external_contacts, monitor_network

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc")
IMPORTED = (
    "flwr.cli.app", "flwr.superlink.cli", "flwr.supernode.cli", "fedflat.federation.flower.client_app",
    "fedflat.federation.flower.server_app", "fedflat.federation.launch.local_federation",
)  # fmt: skip
LIMIT = 300.0  # seconds; machines are busy
PASSING = {" flower superlink ": "SuperLink", " flower node ": "SuperNode", " flower superexec ": "SuperExec"}
WORDS = (
    "--data.name digits --data.clients 2 --participation 1.0 --method.name scaffold --model.name mlp "
    "--executor sequential --client.epochs 1 --client.batch_size 50 --flatness []"
)


@contextmanager
def running(out: Path, rounds: int, log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """`fedflat flower run`, killed at the end of the block if it has not ended."""
    command = [sys.executable, "-m", "fedflat", "flower", "run", "--out", str(out), *flags, *WORDS.split()]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--rounds", str(rounds)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def processes_of(out: Path) -> list[int]:
    return orphan_reaper.find_processes(f"FLWR_HOME={out / 'flower' / 'home'}")


@dataclass(frozen=True)
class Deployment:
    """A federation by `flower run`, with TLS and keys, that has ended, and what was seen while a client trained.

    All its programs are started as users' are.
    """

    out: Path
    contacts: Path  # hosts that its programs have contacted
    second: str  # what a second one in the folder has said
    programs: dict[int, str]  # command lines by process
    with_torch: set[int]  # processes that have loaded it
    listeners: set[tuple[int, str, int]]  # (process, address, port)
    accepted: dict[str, list[str]]  # what another user got of each program, and of files; nothing if it is not root


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    folder = tmp_path_factory.mktemp("deployment")
    out, log = folder / "out", folder / "second.log"
    site, contacts = monitor_network(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH")))))
        with running(out, 1, folder / "first.log") as first:
            wait_for("the lock", (out / "flower" / ".lock").exists)
            time.sleep(0.5)
            with running(out, 1, log) as other:
                assert other.wait(LIMIT) == 2
            wait_for("a client's task", lambda: any("client_process" in command_line(one) for one in processes_of(out)))
            programs = {process: command_line(process) for process in processes_of(out)}
            with_torch = {process for process in programs if has_loaded(process, "libtorch")}
            listeners = listening_sockets(programs)
            accepted = what_another_user_gets(out, programs, listeners) if os.geteuid() == 0 else {}
            assert first.wait(LIMIT) == 0, (folder / "first.log").read_text()
    return Deployment(out, contacts, log.read_text().strip(), programs, with_torch, listeners, accepted)


def has_loaded(process: int, library: str) -> bool:
    """Whether a process has a library with this name in its memory; not if it has ended."""
    with suppress(OSError):
        return library in Path(f"/proc/{process}/maps").read_text()
    return False


def name_of(words: str) -> str:
    """The program of a command line, if it passes messages on, or all of it."""
    return next((name for word, name in PASSING.items() if word in words), words)


def what_another_user_gets(
    out: Path, programs: Mapping[int, str], listeners: set[tuple[int, str, int]]
) -> dict[str, list[str]]:
    """By program what it accepted, and under `files` what could be read."""
    app, found = archive(out / "app"), {}
    for process, address, port in listeners:
        name = name_of(programs[process])
        attacker = Attacker(f"{'https' if name == 'SuperLink' else 'http'}://{address}:{port}")
        attacker.paths()  # imports, which the other user cannot
        found[f"{name} {port}"] = as_other_user(partial(attacker.accepted, app))
    secret = [*(out / "flower").glob("*.secret"), out / "flower" / "superlink.db", *out.glob("clients/*"), out / "app"]
    secret += [Path(f"/proc/{process}/{file}") for process in programs for file in ("environ", "mem")]
    assert len(secret) > 10
    return found | {"files": as_other_user(partial(readable, secret))}


@linux
def test_a_second_one_in_the_folder_is_refused_and_the_first_lives_on(deployment: Deployment, tmp_path: Path) -> None:
    """As soon as the first has its lock, which is long before its federation begins.

    The first one has TLS and keys, contacts no other host, leaves no process, and has the bits of the simulator.
    """
    out = deployment.out
    assert deployment.second == f"fedflat: {out} is being run by another process"
    assert len(events_of(out, "begun")) == 1
    assert [event["missing"] for event in events_of(out, "round")] == [{}]
    assert processes_of(out) == []
    assert "flwr-serverapp" in deployment.contacts.read_text()
    assert external_contacts(deployment.contacts) == []
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*") if path.is_file()}
    kept = [path for path in modes if "logs" in path.parts or "clients" in path.parts or "superlink" in path.name]
    kept += [*(out / "flower").glob("*.secret"), out / "flower" / "home" / "credentials.yaml"]
    assert {path.suffix for path in kept} >= {".log", ".safetensors", ".db", ".secret", ".yaml"}
    assert {modes[path] for path in kept} == {0o600}
    spec = RunSpec.load(out / "federated-study.toml")
    runner.run(spec, tmp_path / "simulation")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "simulation" / "model.safetensors").read_bytes()


@in_test_all
@linux
def test_of_five_that_start_at_once_one_runs(tmp_path: Path) -> None:
    """The others are refused in one line each, whichever comes first, and do it no harm."""
    out, logs = tmp_path / "out", [tmp_path / f"{number}.log" for number in range(5)]
    with ExitStack() as stack:
        started = [stack.enter_context(running(out, 1, log)) for log in logs]
        codes = [process.wait(LIMIT) for process in started]
    assert sorted(codes) == [0, 2, 2, 2, 2], [log.read_text() for log in logs]
    refused = {log.read_text().strip() for code, log in zip(codes, logs, strict=True) if code}
    assert refused == {f"fedflat: {out} is being run by another process"}
    assert len(events_of(out, "begun")) == 1
    assert processes_of(out) == []
    runner.run(RunSpec.load(out / "federated-study.toml"), tmp_path / "simulation")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "simulation" / "model.safetensors").read_bytes()


@in_test_all
@linux
def test_of_two_runs_of_an_app_into_one_folder_the_second_is_refused(tmp_path: Path) -> None:
    """By its server app; what the first one writes, its log of events among it, is not touched."""
    spec, out = study_of(rounds=4, participation=1.0, data={"name": "digits", "clients": 2}), tmp_path / "out"
    export(spec, RunSettings(clients=2, out=str(out), wait=LIMIT, deadline=LIMIT), tmp_path / "app")
    nodes = {f"client-{i}": {"partition-id": i, "state": str(tmp_path / "state")} for i in range(2)}
    approved = partial(list, [app_digest(tmp_path / "app")])
    with LocalFederation(tmp_path / "flower", nodes, secure=False, approved=approved) as federation:
        first, second = (federation.submit(tmp_path / "app", out) for _ in range(2))
        assert list(federation.events(first, LIMIT))[-1]["event"] == "finished"
        wait_for("the end of the other", lambda: status_of(federation, second).startswith("finished"))
        endings = sorted(status_of(federation, run) for run in (first, second))
    assert endings == ["finished:completed", "finished:failed"]
    assert len(events_of(out, "begun")) == 1
    assert events_of(out, "failed") == []
    assert [event["missing"] for event in events_of(out, "round")] == [{}] * 4
    runner.run(spec, tmp_path / "simulation")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "simulation" / "model.safetensors").read_bytes()


def status_of(federation: LocalFederation, run: SubmittedRun) -> str:
    """What Flower's command says of a run."""
    output = federation.processes.run("flwr", "list", CONNECTION, "--run-id", run.run_id, "--format", "json")
    return str(json.loads(output[output.find("{") :])["runs"][0]["status"])


@linux
def test_what_listens_is_what_the_page_of_threats_says(deployment: Deployment) -> None:
    found = {(name_of(deployment.programs[process]), address) for process, address, _ in deployment.listeners}
    assert found == documented_listeners("fedflat flower run")


@linux
def test_programs_that_only_pass_messages_on_have_not_loaded_torch(deployment: Deployment) -> None:
    """It takes a second and 180 MB of each, and every site has a SuperNode."""
    names = {process: name_of(words) for process, words in deployment.programs.items()}
    passing = {process for process, name in names.items() if name in PASSING.values()}
    assert {names[process] for process in passing} == set(PASSING.values())
    assert passing.isdisjoint(deployment.with_torch)
    assert any("flwr-serverapp" in deployment.programs[process] for process in deployment.with_torch)


@linux
def test_no_command_line_tells_a_token_or_a_secret(deployment: Deployment) -> None:
    """Every user of the machine can read the command lines of all processes."""
    tasks = [words for words in deployment.programs.values() if "flwr-serverapp" in words or "client_process" in words]
    assert len(tasks) >= 2
    assert [words for words in tasks if "--token-file /dev/fd/" not in words] == []
    secrets = [path.read_text() for path in (deployment.out / "flower").glob("*.secret")]
    assert len(secrets) == 2
    assert [words for words in deployment.programs.values() for secret in secrets if secret in words] == []


@linux
@needs_two_users
def test_another_user_starts_no_run_takes_no_task_and_reads_nothing(deployment: Deployment) -> None:
    """Each path of each API with nothing in it, a run of the approved app itself, and tasks while one is open."""
    assert sorted(name.split()[0] for name in deployment.accepted) == ["SuperLink", "SuperNode", "SuperNode", "files"]
    assert {name: accepted for name, accepted in deployment.accepted.items() if accepted} == {}


@linux
def test_nothing_is_left_of_one_that_is_killed(
    tmp_path: Path, record_property, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even of its server app, which has a session of its own, a few seconds later in the middle of a round.

    All programs are forked from one that has imported them, with the variables that Flower reads when it is imported.
    """
    record_property("tried", number := effort(1, 5))
    for kill in range(number):
        out = tmp_path / str(kill)
        variables = OFFLINE | {"FLWR_HOME": str(out / "flower" / "home")}
        with ExitStack() as stack:
            server = stack.enter_context(fork_server(*IMPORTED, **variables))
            monkeypatch.setattr(subprocess.Popen, "_execute_child", forking(server))
            process = stack.enter_context(running(out, 50, tmp_path / f"{kill}.log", "--insecure"))
            wait_for("the beginning", lambda out=out: events_of(out, "begun"))
            time.sleep(1.7 * kill)
            wait_for("a link, an exec, its server app, and two nodes", lambda out=out: len(processes_of(out)) >= 5)
            process.kill()
            process.wait()
            wait_for("the ends of all processes", lambda out=out: not processes_of(out), 15)


def test_nothing_is_touched_before_the_lock(tmp_path: Path) -> None:
    """Nor by one that is refused: the database, keys and study of the other one stay as they are."""
    spec, out = study_of(), tmp_path / "out"
    (out / "flower").mkdir(parents=True)
    (out / "flower" / "superlink.db").write_text("of the first one")
    LocalFederation(out / "flower", {"client-0": {}}, approved=list)
    federation = local_deployment(spec, out, {}, secure=False)
    assert sorted(path.name for path in out.rglob("*")) == ["flower", "superlink.db"]
    with locked(out / "flower" / ".lock", "busy"), failing(InputError, f"{out} is being run by another process"):
        federation.__enter__()
    assert sorted(path.name for path in out.rglob("*")) == [".lock", "flower", "superlink.db"]
    assert (out / "flower" / "superlink.db").read_text() == "of the first one"


def test_a_study_that_is_refused_leaves_the_folder_to_its_correction(tmp_path: Path) -> None:
    """A private study needs client.steps, which export finds out; the folder would hold another federation then."""
    privacy = {"epsilon": 8.0, "delta": 0.1, "clip": 1.0, "rate": 0.5}
    pytest.importorskip("dp_accounting")
    spec = study_of(privacy=privacy, participation=0.2, weights="uniform", client={"epochs": 1, "batch_size": 8})
    with failing(InputError, "privacy needs client.steps"):
        local_deployment(spec, tmp_path / "out", {}, secure=False).__enter__()
    assert not (tmp_path / "out").exists()

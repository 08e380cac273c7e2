"""`flower run` as a process: one in a folder at a time, and nothing is running after it, however it ends."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.experiments.spec import RunSpec
from fedflat.federation.launch import orphan_reaper
from fedflat.federation.launch.local_deployment import local_deployment
from fedflat.federation.launch.local_federation import LocalFederation
from fedflat.files import locked
from support.effort import effort
from support.flower_fixtures import events_of, failing, study_of, wait_for
from support.network_monitor import external_contacts, monitor_network

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc")
LIMIT = 300.0  # seconds; machines are busy
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


@linux
def test_a_second_one_in_the_folder_is_refused_and_the_first_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as the first has its lock, which is long before its federation begins.

    The first one has TLS and keys, contacts no other host, leaves no process, and has the bits of the simulator.
    """
    out, log = tmp_path / "out", tmp_path / "second.log"
    site, contacts = monitor_network(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH")))))
    with running(out, 1, tmp_path / "first.log") as first:
        wait_for("the lock", (out / "flower" / ".lock").exists)
        time.sleep(0.5)
        with running(out, 1, log) as other:
            assert other.wait(LIMIT) == 2
        assert log.read_text().strip() == f"fedflat: {out} is being run by another process"
        assert first.wait(LIMIT) == 0, (tmp_path / "first.log").read_text()
    assert len(events_of(out, "begun")) == 1
    assert [event["missing"] for event in events_of(out, "round")] == [{}]
    assert processes_of(out) == []
    assert "flwr-serverapp" in contacts.read_text()
    assert external_contacts(contacts) == []
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*") if path.is_file()}
    kept = [path for path in modes if "logs" in path.parts or "clients" in path.parts or "superlink" in path.name]
    assert {path.suffix for path in kept} >= {".log", ".safetensors", ".db"}
    assert {modes[path] for path in kept} == {0o600}
    spec = RunSpec.load(out / "federated-study.toml")
    runner.run(spec, tmp_path / "simulation")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "simulation" / "model.safetensors").read_bytes()


@linux
def test_nothing_is_left_of_one_that_is_killed(tmp_path: Path, record_property) -> None:
    """Not even of its server app, which has a session of its own, a few seconds later in the middle of a round."""
    record_property("tried", number := effort(1, 5))
    for kill in range(number):
        out = tmp_path / str(kill)
        with running(out, 50, tmp_path / f"{kill}.log", "--insecure") as process:
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
    LocalFederation(out / "flower", {"client-0": {}})
    federation = local_deployment(spec, out, {}, secure=False)
    assert sorted(path.name for path in out.rglob("*")) == ["flower", "superlink.db"]
    with locked(out / "flower" / ".lock", "busy"), failing(InputError, f"{out} is being run by another process"):
        federation.__enter__()
    assert sorted(path.name for path in out.rglob("*")) == [".lock", "flower", "superlink.db"]
    assert (out / "flower" / "superlink.db").read_text() == "of the first one"

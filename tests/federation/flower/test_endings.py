"""`flower run` as a process: one in a folder at a time, and nothing of it left however it ends."""

from __future__ import annotations

import os
import signal
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
from fedflat.federation.flower import event_log
from fedflat.federation.flower.export import export, export_again
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch import orphan_reaper
from fedflat.federation.launch.local_deployment import LocalDeployment
from fedflat.federation.launch.local_federation import LocalFederation
from fedflat.federation.launch.processes import MARK, Processes
from fedflat.files import locked
from support.effort import effort
from support.flower_fixtures import failing, study_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc")
LIMIT = 240.0  # seconds; machines are busy
WORDS = (
    "--data.name digits --data.clients 2 --participation 1.0 --method.name scaffold --model.name mlp "
    "--executor sequential --client.epochs 1 --client.batch_size 50 --flatness []"
)


@contextmanager
def running(out: Path, rounds: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`fedflat flower run`, killed at the end of the block if it has not ended."""
    command = [sys.executable, "-m", "fedflat", "flower", "run", "--insecure", "--out", str(out), *WORDS.split()]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*command, "--rounds", str(rounds)], stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def until(what: str, happened, seconds: float = LIMIT) -> float:
    begin = time.monotonic()
    while not happened():
        assert time.monotonic() - begin < seconds, f"waited in vain for {what}"
        time.sleep(0.1)
    return time.monotonic() - begin


def of(out: Path) -> list[int]:
    return orphan_reaper.marked(f"FLWR_HOME={out / 'flower' / 'home'}")


def told(out: Path, kind: str) -> list[dict]:
    return [event for event in event_log.read(out) if event["event"] == kind]


@linux
def test_a_second_one_in_the_folder_is_refused_and_the_first_lives_on(tmp_path: Path) -> None:
    """At every time: as soon as the first has its lock, and when its federation has begun."""
    out = tmp_path / "out"
    with running(out, 2, tmp_path / "first.log") as first:
        until("the lock", (out / "flower" / ".lock").exists)
        time.sleep(0.5)
        for log in (tmp_path / "second.log", tmp_path / "third.log"):
            with running(out, 2, log) as other:
                assert other.wait(LIMIT) == 2
            assert log.read_text().strip() == f"fedflat: {out} is being run by another process"
            assert first.poll() is None
            until("a beginning", lambda: told(out, "begun"))
        assert first.wait(LIMIT) == 0, (tmp_path / "first.log").read_text()
    assert len(told(out, "begun")) == 1
    assert [event["missing"] for event in told(out, "round")] == [{}, {}]
    assert of(out) == []
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*") if path.is_file()}
    kept = [path for path in modes if "logs" in path.parts or "clients" in path.parts or "superlink" in path.name]
    assert {path.suffix for path in kept} >= {".log", ".safetensors", ".db"}
    assert {modes[path] for path in kept} == {0o600}
    spec = RunSpec.load(out / "federated-study.toml")
    runner.run(spec, tmp_path / "simulation")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "simulation" / "model.safetensors").read_bytes()


@linux
def test_nothing_is_left_of_one_that_is_killed(tmp_path: Path, record_property) -> None:
    """Nor after a few seconds of its server app, which has a session of its own and may be in the middle of a round."""
    record_property("tried", number := effort(1, 5))
    for kill in range(number):
        out = tmp_path / str(kill)
        with running(out, 50, tmp_path / f"{kill}.log") as process:
            until("a beginning", lambda out=out: told(out, "begun"))
            time.sleep(1.7 * kill)
            until("a link, an exec, its server app, and two nodes", lambda out=out: len(of(out)) >= 5)
            process.kill()
            process.wait()
            until("their ends", lambda out=out: not of(out), 15)


@linux
def test_what_a_killed_one_has_left_is_ended_by_the_next(tmp_path: Path) -> None:
    """Even if its keeper was killed too. What others run with this home is none of our business."""
    processes = Processes(tmp_path)
    home = {"FLWR_HOME": str(processes.home)}
    ignoring = [sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"]
    left = subprocess.Popen(ignoring, env={**os.environ, **home, MARK: "one that is gone"}, start_new_session=True)
    users = subprocess.Popen(ignoring, env={**os.environ, **home}, start_new_session=True)
    try:
        until("both", lambda: len(orphan_reaper.marked(f"FLWR_HOME={processes.home}")) == 2)
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


@linux
def test_stopping_ends_what_was_started_here_and_nothing_else(tmp_path: Path) -> None:
    """Two with the same home, as they were when two could run in one folder."""
    one, other = Processes(tmp_path), Processes(tmp_path)
    sleeping = ["import time; time.sleep(600)"]
    one.prepare()
    first = subprocess.Popen([sys.executable, "-c", *sleeping], env=one._environment, start_new_session=True)
    try:
        until("it", lambda: one.left() == [first.pid])
        assert other.left() == []
        other.stop()
        assert first.poll() is None
        one.stop()
        assert first.wait(5) < 0
    finally:
        first.kill()
        first.wait()


def test_nothing_is_touched_before_the_lock(tmp_path: Path) -> None:
    """Neither by one that is refused: the other's database, keys and study stay as they are."""
    spec, out = study_of(), tmp_path / "out"
    (out / "flower").mkdir(parents=True)
    (out / "flower" / "superlink.db").write_text("the first one's")
    LocalFederation(out / "flower", {"client-0": {}})
    federation = LocalDeployment(spec, out, {}, secure=False)
    assert sorted(path.name for path in out.rglob("*")) == ["flower", "superlink.db"]
    with locked(out / "flower" / ".lock", "busy"), failing(InputError, f"{out} is being run by another process"):
        federation.__enter__()
    assert sorted(path.name for path in out.rglob("*")) == [".lock", "flower", "superlink.db"]
    assert (out / "flower" / "superlink.db").read_text() == "the first one's"


def test_only_its_own_database_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "flower"
    folder.mkdir()
    for name in ("superlink.db", "superlink.db-wal", "superlink.db.mine", "superlink.db-backup"):
        (folder / name).touch()
    local = LocalFederation(folder, {}, secure=False)
    local.processes.prepare()
    try:
        local._prepare()
    finally:
        local.processes.stop()
    assert sorted(path.name for path in folder.glob("superlink*")) == ["superlink.db-backup", "superlink.db.mine"]


def exported(folder: Path, **changes) -> None:
    export_again(study_of(**changes), RunSettings(clients=5), folder)


def test_an_app_is_written_over_one_that_was_exported(tmp_path: Path) -> None:
    """Another version's or with other settings; its folder stays, and what running it has left."""
    app = tmp_path / "app"
    exported(app, rounds=3)
    (app / "federated" / "__pycache__").mkdir()
    (app / "federated" / "__pycache__" / "server.cpython-311.pyc").touch()
    exported(app, rounds=7)
    assert "rounds = 7" in (app / "study.toml").read_text()
    fresh = tmp_path / "fresh"
    export(study_of(rounds=7), RunSettings(clients=5), fresh)
    for path in fresh.rglob("*.*"):
        assert (app / path.relative_to(fresh)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", ["thesis.tex", "federated/data.csv", "deep/er/x", ".git/config", "study.tomlx"])
def test_users_files_in_the_place_of_an_app_are_left_alone(name: str, tmp_path: Path) -> None:
    app = tmp_path / "app"
    exported(app)
    (app / name).parent.mkdir(parents=True, exist_ok=True)
    (app / name).write_text("mine")
    before = {path: path.read_bytes() for path in app.rglob("*") if path.is_file()}
    first = app / name.split("/")[0] if "/" in name and not name.startswith("federated") else app / name
    with failing(InputError, f"{first} is not what fedflat exports; move it away"):
        exported(app, rounds=9)
    assert {path: path.read_bytes() for path in app.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["pyproject.toml", "federated/client.py", "federated/server.py"])
def test_users_versions_of_an_apps_files_are_left_alone(name: str, tmp_path: Path) -> None:
    app = tmp_path / "app"
    exported(app)
    (app / name).write_text("# mine\n")
    with failing(InputError, f"{app / name} is not what fedflat exports"):
        exported(app)
    assert (app / name).read_text() == "# mine\n"


def test_an_app_that_is_somewhere_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for target in ("elsewhere", "nowhere"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(tmp_path / target)
        with failing(InputError, f"{link} is not what fedflat exports"):
            exported(link)
    (tmp_path / "file").write_text("mine")
    with failing(InputError, "is not what fedflat exports"):
        exported(tmp_path / "file")
    assert list((tmp_path / "elsewhere").iterdir()) == []

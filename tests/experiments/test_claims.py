"""Of all processes that share a run's folder, one writes it at a time; one that lost its claim damages nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from threading import Barrier, Thread

import pytest

from fedflat.core.errors import InputError
from fedflat.experiments import claims, runner
from fedflat.experiments.claims import NAME, BusyError, Claim, ClaimLostError, ClaimObserver, Observation, claimed
from fedflat.experiments.interrupt import StopRequest
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.runner import RunExecution, RunObserver
from fedflat.files import write_atomically
from support.processes import wait_until
from support.studies import run_spec

NOTHING = Observation(None, None, is_free=True)
HOLD = """
import sys, time
from pathlib import Path
from fedflat.experiments.claims import ClaimObserver, claimed
folder = Path(sys.argv[1])
with claimed(folder, ClaimObserver().look(folder), float(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""


def look(folder: Path) -> Observation:
    return ClaimObserver().look(folder)


def claim_of_another_machine(folder: Path, **changes: object) -> Claim:
    claim = replace(Claim.new(lease=0.4), host="node7", machine="another machine", pid=12, **changes)
    (folder / NAME).write_bytes(claim.content())
    return claim


def test_a_held_folder_is_busy_and_free_again(tmp_path: Path) -> None:
    with claimed(tmp_path, look(tmp_path)) as held:
        held.check()
        assert look(tmp_path).is_locked
        with pytest.raises(BusyError, match=rf"is being written by process {os.getpid()} on ") as told:
            claimed(tmp_path, look(tmp_path)).__enter__()
        assert "\n" not in str(told.value)
    assert look(tmp_path) == NOTHING
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="stops processes")
@pytest.mark.usefixtures("forked_processes")
def test_a_process_that_was_killed_leaves_the_folder_free_at_once_and_one_that_was_stopped_after_its_lease(
    tmp_path: Path,
) -> None:
    for name in ("killed", "stopped"):
        (tmp_path / name).mkdir()
    watched = {
        name: subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / name), "1.5"], stdout=subprocess.PIPE)
        for name in ("killed", "stopped")
    }
    try:
        for process in watched.values():
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
        observer = ClaimObserver()
        assert not observer.look(tmp_path / "killed").is_free
        watched["killed"].kill()
        watched["killed"].wait()
        assert observer.look(tmp_path / "killed").has_ended

        wait_until(lambda: observer.look(tmp_path / "stopped").is_alive, "a heartbeat")
        watched["stopped"].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        wait_until(lambda: observer.look(tmp_path / "stopped").is_free, "the end of the lease")
        assert time.monotonic() - begin > 1.0
        with claimed(tmp_path / "stopped", observer.look(tmp_path / "stopped")) as held:
            watched["stopped"].send_signal(signal.SIGCONT)
            time.sleep(0.6)  # two of its heartbeats
            held.check()
    finally:
        for process in watched.values():
            process.kill()
            process.communicate()


def test_a_claim_of_another_machine_is_believed_until_its_number_stands_still(tmp_path: Path) -> None:
    claim, observer = claim_of_another_machine(tmp_path), ClaimObserver()
    for beat in range(4):
        (tmp_path / NAME).write_bytes(replace(claim, beat=beat).content())
        found = observer.look(tmp_path)
        assert (found.is_free, found.is_alive) == (False, beat > 0)
        time.sleep(0.2)
    assert not observer.look(tmp_path).is_free
    time.sleep(0.3)
    assert observer.look(tmp_path).is_free


@pytest.mark.skipif(sys.platform != "linux", reason="containers are Linux's")
@pytest.mark.usefixtures("forked_processes")
def test_a_container_is_a_machine_of_its_own(tmp_path: Path) -> None:
    """Two containers may have the folder by two mounts, between which no lock is seen: silence alone counts."""
    inside = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    try:
        subprocess.run([*inside, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"namespaces are not permitted here: {error}")
    code = "from fedflat.experiments.claims import machine_name; print(machine_name())"
    here, again, there = (
        subprocess.run([*where, sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
        for where in ([], [], inside)
    )
    assert here == again != there
    claim = replace(Claim.new(lease=60.0), machine=there)
    (tmp_path / NAME).write_bytes(claim.content())
    assert not look(tmp_path).is_free
    (tmp_path / NAME).write_bytes(replace(claim, machine=here).content())
    assert look(tmp_path).has_ended


@pytest.mark.parametrize("began", [0.0, 4e9])
def test_the_clocks_of_other_machines_do_not_matter(tmp_path: Path, began: float) -> None:
    claim_of_another_machine(tmp_path, began=began)
    assert not look(tmp_path).is_free


@pytest.mark.parametrize("is_silent", [False, True])
def test_of_many_processes_that_claim_at_once_one_succeeds(tmp_path: Path, is_silent: bool) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        if is_silent:
            claim_of_another_machine(folder)
        barrier, observed = Barrier(8), replace(look(folder), is_free=True)
        everybody = [Claimer(folder, observed, barrier) for _ in range(8)]
        for one in everybody:
            one.start()
        for one in everybody:
            one.join()
        assert sorted(one.outcome for one in everybody) == ["busy"] * 7 + ["held"]
        assert not list(folder.iterdir())


class Claimer(Thread):
    """Claims a folder at the same moment as others, and looks whether it lost its claim when all have tried."""

    def __init__(self, folder: Path, observed: Observation, barrier: Barrier) -> None:
        super().__init__()
        self.folder, self.observed, self.barrier, self.outcome = folder, observed, barrier, "not ended"

    def run(self) -> None:
        self.barrier.wait()
        try:
            with claimed(self.folder, self.observed) as held:
                time.sleep(0.2)
                held.check()
                self.outcome = "held"
                time.sleep(0.2)
        except BusyError:
            self.outcome = "busy"


def test_what_is_written_after_the_claim_was_lost_is_not_there(tmp_path: Path) -> None:
    def try_to_write() -> None:
        with pytest.raises(ClaimLostError, match=r"was taken over by process 12 on node7.*silent for more than 60 s"):
            write_atomically(tmp_path / "file", lambda path: path.write_text("late"))

    with pytest.raises(ClaimLostError), claimed(tmp_path, look(tmp_path)):  # noqa: PT012 (both are part of it)
        write_atomically(tmp_path / "file", lambda path: path.write_text("in time"))
        other = claim_of_another_machine(tmp_path)
        try_to_write()
        raise InputError("the other process has swept a temporary file")
    assert (tmp_path / "file").read_text() == "in time"
    assert (tmp_path / NAME).read_bytes() == other.content(), "the claim of the other process stays"
    assert not list(tmp_path.glob(".tmp-*"))
    write_atomically(tmp_path / "file", lambda path: path.write_text("outside"))  # the check ended with the block


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff" * 5000, json.dumps(asdict(Claim.new(1)) | {"lease": 1e9}).encode()]
)
def test_a_damaged_claim_is_believed_for_a_lease(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).write_bytes(content)
    observer = ClaimObserver()
    found = observer.look(tmp_path)
    assert (found.is_free, found.claim) == (False, None)
    monkeypatch.setattr(claims, "LEASE", 0.0)
    with claimed(tmp_path, observer.look(tmp_path)):
        pass


def test_a_claim_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / NAME).symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=r"\.claim cannot be read"):
        look(tmp_path)
    with pytest.raises(BusyError):
        claimed(tmp_path, NOTHING).__enter__()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*names: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    with claimed(tmp_path, NOTHING), pytest.raises(BusyError):
        claimed(tmp_path, NOTHING).__enter__()
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of this machine that has ended is noticed by its silence."""

    def no_lock(handle: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(claims, "lock", no_lock)
    (tmp_path / NAME).write_bytes(Claim.new(lease=0.3).content())  # left by a process that was killed
    observer = ClaimObserver()
    assert not observer.look(tmp_path).is_free
    time.sleep(0.4)
    with claimed(tmp_path, observer.look(tmp_path)):
        assert not look(tmp_path).is_free


@pytest.mark.parametrize("lease", [0, -1.0, float("nan"), float("inf"), 1e6])
def test_a_lease_that_makes_no_sense(lease: float) -> None:
    with pytest.raises(InputError, match="lease must be more than 0 and at most 86400 seconds"):
        Claim.new(lease)


class TakenOver(RunObserver):
    """After round 2, another process takes the run over and finishes it; this one, which was only stopped, goes on."""

    def __init__(self, path: Path) -> None:
        self.path, self.done = path, False

    def round_ended(self, spec, round) -> None:
        if round.t == 2 and not self.done:
            self.done = True
            observed = replace(look(self.path), is_free=True)
            RunExecution(spec, RunDirectory(self.path), RunObserver(), StopRequest(), observed=observed).carry_out()


@pytest.mark.parametrize("store_megabytes", [256, 0])
def test_two_processes_that_both_carry_out_a_run_damage_nothing(tmp_path: Path, store_megabytes: int) -> None:
    """Also if clients' records lie in a file that both write in place."""
    spec = run_spec(method="scaffold", rounds=8, checkpoint_every=1, flatness=[], store_megabytes=store_megabytes)
    alone = runner.run(spec, tmp_path / "alone")
    with pytest.raises(ClaimLostError):
        runner.run(spec, path := tmp_path / "run", TakenOver(path))
    both = RunDirectory(path)
    assert both.is_finished
    assert not both.damaged_files()
    assert both.failure is None
    assert bool(list(both.state.glob("*.slots"))) == (store_megabytes == 0)
    for name in ("model.safetensors", "config.toml", "partition.parquet"):
        assert (path / name).read_bytes() == (alone.directory.path / name).read_bytes(), name
    longer = spec.model_copy(update={"rounds": 8})
    assert runner.run(longer, path).summary["rounds"] == 8
    assert look(path) == NOTHING

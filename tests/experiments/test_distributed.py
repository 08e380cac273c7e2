"""A run by several ranks at the command line leaves the folder of one process, whatever is killed meanwhile."""

from __future__ import annotations

import hashlib
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedflat.engine.local_ranks import FOLDER, KEY
from fedflat.experiments import runner
from fedflat.experiments.interrupt import Interrupted
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.spec import RunSpec
from support.effort import chosen, effort, in_test_all
from support.local_user import as_other_user, documented_listeners, listening_sockets, needs_two_users, refusal
from support.processes import PATIENCE, children, has_ended, wait_until
from support.studies import run_spec
from support.watching import Watched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
    pytest.mark.usefixtures("forked_processes"),
]


def spec(**changes) -> RunSpec:
    return run_spec(method="fedsmoo", executor="stacked", checkpoint_every=1, **changes)


def model(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@contextmanager
def started(spec: RunSpec, folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """`fedflat run` with these flags; it is ended, with all that it has started, when the block is left."""
    config = folder.parent / f"{folder.name}.toml"
    config.write_text(spec.to_toml())
    command = [sys.executable, "-m", "fedflat", "run", str(config), "--out", str(folder), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as launcher:
        try:
            yield launcher
        finally:
            for process in (*children(launcher.pid), launcher.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def ranks_in_round(launcher: subprocess.Popen[str], folder: Path, t: int) -> list[int]:
    """The processes of the ranks, once round `t` is saved."""
    directory = RunDirectory(folder)

    def saved() -> bool:
        newest = directory.checkpoint
        return launcher.poll() is not None or (newest is not None and newest.name >= f"round-{t:06d}")

    wait_until(saved, f"round {t}")
    assert launcher.poll() is None, launcher.stderr.read()
    return sorted(children(launcher.pid))


def assert_same(spec: RunSpec, two: Path, alone: Path) -> None:
    """Two folders of a finished run have the same results."""
    assert model(two) == model(alone)
    for name in ("config.toml", "partition.parquet"):
        assert (two / name).read_bytes() == (alone / name).read_bytes()
    one, other = (RunDirectory(folder).findings()[0].values["consistency"] for folder in (alone, two))
    assert one.value == pytest.approx(other.value, rel=1e-9), "up to the number of threads that measure"
    rows, others = (runner.run(spec, folder).metrics.drop_columns(["seconds"]) for folder in (alone, two))
    assert rows == others


@pytest.mark.parametrize("victims", chosen([(0,)], [(), (0,), (0, 1)]))
def test_a_rank_that_is_killed_is_started_again(tmp_path: Path, victims: tuple[int, ...]) -> None:
    """None, the one that writes, and then another: two ranks leave the folder of one process."""
    long = spec(rounds=effort(20, 60), flatness=["consistency"])
    runner.run(long, tmp_path / "whole")
    with started(long, tmp_path / "killed", "--ranks", "2", "--max-restarts", str(len(victims))) as launcher:
        for victim, t in zip(victims, (5, effort(10, 30)), strict=False):
            os.kill(ranks_in_round(launcher, tmp_path / "killed", t)[victim], signal.SIGKILL)
        out, stderr = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, stderr
    assert out.count("results in") == 1, "only rank 0 prints"
    assert_same(long, tmp_path / "killed", tmp_path / "whole")


@in_test_all
def test_a_rank_that_hangs_is_started_again(tmp_path: Path) -> None:
    long = spec(rounds=20, flatness=[])
    runner.run(long, tmp_path / "whole")
    flags = ("--ranks", "2", "--max-restarts", "1", "--patience", "5", "--grace", "2")
    with started(long, tmp_path / "hung", *flags) as launcher:
        os.kill(ranks_in_round(launcher, tmp_path / "hung", 5)[1], signal.SIGSTOP)
        _, stderr = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, stderr
    assert model(tmp_path / "hung") == model(tmp_path / "whole")


@dataclass
class TwoRanks:
    """A run in two ranks that has done some rounds."""

    launcher: subprocess.Popen[str]
    ranks: list[int]  # their processes


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoRanks]:
    """For the next tests; the last of them kills a rank. Its processes are started as users' are."""
    folder = tmp_path_factory.mktemp("ranks") / "run"
    with started(spec(rounds=2000), folder, "--ranks", "2") as launcher:
        yield TwoRanks(launcher, ranks_in_round(launcher, folder, 2))


def test_ranks_listen_on_the_loopback_alone(two_ranks: TwoRanks) -> None:
    """gloo in each rank, which the page of threats names; torchrun's agent has no port."""
    found = listening_sockets([two_ranks.launcher.pid, *two_ranks.ranks])
    assert {(process, address) for process, address, _ in found} == {
        (rank, address) for rank in two_ranks.ranks for _, address in documented_listeners("fedflat run --ranks N")
    }


@needs_two_users
def test_another_user_can_neither_read_where_ranks_meet_nor_disturb_them(two_ranks: TwoRanks) -> None:
    """What is sent to gloo's ports takes no rank's place: the run goes on, until the next test kills a rank."""
    variables = Path(f"/proc/{two_ranks.ranks[0]}/environ").read_bytes().split(b"\0")
    [folder] = [Path(os.fsdecode(word.partition(b"=")[2])) for word in variables if word.startswith(FOLDER.encode())]
    ports = [port for *_, port in listening_sockets(two_ranks.ranks)]

    def attempt() -> list[str]:
        for port in ports:
            for sequence in range(4):  # what gloo reads first of whoever connects
                with socket.create_connection(("127.0.0.1", port)) as stream:
                    stream.sendall(sequence.to_bytes(8, "little") + b"x" * 64)
        files = [folder / KEY, Path(f"/proc/{two_ranks.ranks[0]}/environ"), Path(f"/proc/{two_ranks.ranks[0]}/mem")]
        return [refusal(lambda: list(folder.iterdir())), *(refusal(lambda file=file: file.open()) for file in files)]

    assert ports
    assert (folder / KEY).exists()
    assert as_other_user(attempt) == ["PermissionError"] * 4


def test_without_restarts_the_error_names_the_rank_and_how_to_resume(two_ranks: TwoRanks) -> None:
    assert two_ranks.launcher.poll() is None
    os.kill(two_ranks.ranks[1], signal.SIGKILL)
    _, stderr = two_ranks.launcher.communicate(timeout=PATIENCE)
    assert two_ranks.launcher.returncode == 1
    assert "rank 1 was ended by SIGKILL (is memory short?); the same command resumes from the last checkpoint" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(
    ("number", "code"), chosen([(signal.SIGINT, 130)], [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
)
def test_after_a_signal_the_last_round_is_saved(tmp_path: Path, number: int, code: int) -> None:
    with started(
        spec(rounds=3000).model_copy(update={"checkpoint_every": 10}), tmp_path / "run", "--ranks", "2"
    ) as launcher:
        ranks = ranks_in_round(launcher, tmp_path / "run", 10)
        launcher.send_signal(number)
        _, stderr = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == code, stderr
    assert (
        f"round {int(RunDirectory(tmp_path / 'run').checkpoint.stem[-6:])} of 3000 of FedSMOO-seed0 is saved" in stderr
    )
    assert "Traceback" not in stderr
    assert all(map(has_ended, ranks))


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    with started(spec(rounds=3000), tmp_path / "run", "--ranks", "2") as launcher:
        ranks = ranks_in_round(launcher, tmp_path / "run", 2)
        assert len(ranks) == 2
        launcher.kill()
        wait_until(lambda: all(map(has_ended, ranks)), "the end of the ranks")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--ranks", "-1"], "--ranks -1 must be at least 1"),
        (["--ranks", "2", "--max-restarts", "-1"], "--max-restarts -1 must be at least 0"),
        (["--ranks", "2", "--method.rho", "-1"], "method.rho"),
        (["--ranks", "2", "--patience", "0"], "--patience 0.0 must be more than 0"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(fedflat, tmp_path: Path, flags: list[str], line: str) -> None:
    (tmp_path / "run.toml").write_text(spec().to_toml())
    code, _, stderr = fedflat(shlex.join(["run", "run.toml", "--out", "run", *flags]))
    assert code == 2
    assert line in stderr
    assert len(stderr.strip().splitlines()) == 1


@in_test_all
def test_an_error_on_all_ranks_is_printed_once(tmp_path: Path) -> None:
    """`make test` has this in one process that is told that it is a rank (`tests/cli/test_ending.py`)."""
    runner.run(spec(rounds=1, flatness=[]), tmp_path / "run")
    with started(spec(rounds=1, flatness=[], seed=1), tmp_path / "run", "--ranks", "2") as launcher:
        _, stderr = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 2
    assert stderr.count("holds another run") == 1
    assert "Traceback" not in stderr


def test_a_study_under_torchrun_is_refused(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    code, _, stderr = fedflat("compare --rounds 1 --out study")
    assert code == 2
    assert stderr.startswith("fedflat: torchrun is for `fedflat run`; a study runs in one process")


@in_test_all
def test_a_run_goes_on_under_torchrun(tmp_path: Path) -> None:
    """With any number of ranks. `make test` has checkpoints of one process and of three in `engine/test_ranks.py`."""
    whole = spec(flatness=[])
    runner.run(whole, tmp_path / "whole")
    with pytest.raises(Interrupted):
        runner.run(whole, tmp_path / "run", Watched(signal_after=2))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fedflat"]
    resumed = subprocess.run(
        [*torchrun, "resume", str(tmp_path / "run")], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.count("results in") == 1
    assert model(tmp_path / "run") == model(tmp_path / "whole")

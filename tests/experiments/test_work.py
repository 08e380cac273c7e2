"""Several processes carry out one study: every run is finished once, whatever becomes of the processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fedflat.core.errors import NonFiniteError
from fedflat.core.object_references import allow_code
from fedflat.experiments import studies
from fedflat.experiments.claims import NAME, Claim, ClaimObserver, read_claim
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.run_queue import RunQueue
from fedflat.experiments.spec import StudySpec
from fedflat.experiments.study_status import counts, run_statuses, runs_in
from support.blank_figures import blank_figures  # noqa: F401 (used by every test)
from support.effort import effort
from support.processes import PATIENCE, children, wait_until
from support.studies import study_spec
from support.watching import Watched

pytestmark = pytest.mark.usefixtures("forked_processes")
WILD = {"name": "fedsam", "server_lr": 1e38}
LEASE = 2.0  # seconds; the others still have runs when it ends
PROCESSES = 6
SEEDS = effort(6, 12)
ROUNDS = 8
# Runs that take time and hardly any work: some must be left when the lease ends, however fast the machine is.
SLOW = """
import os
import time

from fedflat.methods.fedsmoo import FedSMOO
from fedflat.methods.scaffold import Scaffold


class Slow:
    def update(self, server, mean, ctx):
        time.sleep(float(os.environ.get("SECONDS_PER_ROUND", "0")))
        return super().update(server, mean, ctx)


class SlowScaffold(Slow, Scaffold):
    pass


class SlowFedSMOO(Slow, FedSMOO):
    pass
"""


@contextmanager
def work(folder: Path, *words: str, **variables: str) -> Iterator[dict[int, tuple[subprocess.Popen[bytes], Path]]]:
    """Start processes of `fedflat work`; give each with the file of its output, by process id."""
    found: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
    try:
        for number in range(PROCESSES):
            log = folder / f"{number}.log"
            with log.open("w") as file:
                command = [sys.executable, "-m", "fedflat", "work", *words]
                environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
                process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
            found[process.pid] = process, log
        yield found
    finally:
        for process, _ in found.values():
            process.kill()
            process.wait()


def holders(folder: Path) -> dict[int, Path]:
    """The processes that hold a run, with the run's folder."""
    found = {}
    for path in folder.glob(f"runs/*/{NAME}"):
        if (claim := read_claim(path.parent)) is not None and claim[1] is not None:
            found[claim[1].pid] = path.parent
    return found


def begun(folder: Path) -> dict[int, Path]:
    """The processes that have saved a round of the run that they hold."""
    return {pid: path for pid, path in holders(folder).items() if RunDirectory(path).checkpoints}


def under_way(folder: Path) -> list[Path]:
    """The runs of which a process says that it has finished a round."""
    held = {path: read_claim(path) for path in holders(folder).values()}
    return [path for path, claim in held.items() if claim is not None and claim[1] is not None and claim[1].done]


def models(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.glob("runs/*/model.safetensors")}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="stops processes")
def test_of_six_processes_two_are_killed_and_one_is_stopped_for_longer_than_its_lease(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    methods = [f"{tmp_path}/slow.py:{name}" for name in ("SlowScaffold", "SlowFedSMOO")]
    spec = study_spec(methods=methods, seeds=list(range(SEEDS)), rounds=ROUNDS, flatness=[], checkpoint_every=2)
    (tmp_path / "study.toml").write_text(spec.to_toml())
    with allow_code():  # also to read it: the folders' names depend on the methods' defaults
        spec = StudySpec.load(tmp_path / "study.toml")
        studies.carry_out_study(spec, tmp_path / "alone")
    shared, hurt = tmp_path / "shared", dict[int, Path]()
    words = [str(tmp_path / "study.toml"), "--out", str(shared), "--lease", str(LEASE)]
    # A run lasts for two leases.
    with work(tmp_path, *words, SECONDS_PER_ROUND=str(2 * LEASE / ROUNDS)) as processes:
        for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGKILL):
            wait_until(lambda: begun(shared).keys() - hurt, "a process that has saved a round")
            pid, folder = next((pid, folder) for pid, folder in begun(shared).items() if pid not in hurt)
            os.kill(pid, number)
            hurt[pid] = folder
        stopped = next(iter(hurt))
        others = [process for pid, (process, _) in processes.items() if pid not in hurt]
        wait_until(lambda: stopped not in holders(shared), "another process to take its run over")
        os.kill(stopped, signal.SIGCONT)
        codes = {process.wait(120) for process in (*others, processes[stopped][0])}
        logs = {pid: log.read_text() for pid, (_, log) in processes.items()}
    assert codes == {0}, logs
    assert models(shared) == models(tmp_path / "alone")
    assert len(models(shared)) == 2 * SEEDS
    ended = Counter(line.split()[0] for log in logs.values() for line in log.splitlines() if " test accuracy " in line)
    assert ended == dict.fromkeys((one.label for one in spec.runs()), 1), logs
    assert not holders(shared)
    assert not any(directory.damaged_files() for _, directory in runs_in(shared))
    interrupted = [folder.name for folder in hurt.values()]
    segments = {name: json.loads((shared / "runs" / name / "env.json").read_text()) for name in models(shared)}
    assert all(len(segments[name]) >= 2 for name in interrupted), "another process went on with it"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_a_signal_to_every_process_saves_the_runs_and_begins_no_more(tmp_path: Path) -> None:
    """As schedulers send it before the time limit, or some of them: to the process and to those that it has started."""
    spec = study_spec(methods=["fedavg"], seeds=[0, 1, 2], rounds=2000, flatness=[], checkpoint_every=2000)
    (tmp_path / "study.toml").write_text(spec.to_toml())
    words = [str(tmp_path / "study.toml"), "--out", str(tmp_path / "shared"), "--jobs", "2", "--lease", str(LEASE)]
    command = [sys.executable, "-m", "fedflat", "work", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_until(lambda: len(under_way(tmp_path / "shared")) == 2, "a round of two runs")
        for pid in (*children(process.pid), process.pid):
            os.kill(pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM, output
    assert len([line for line in output.splitlines() if " begins with round " in line]) == 2, output
    assert "left out" not in output
    saved = list((tmp_path / "shared").glob("runs/*/checkpoint/round-*.safetensors"))
    assert len(saved) == 2, "though no checkpoint was due"


def test_a_queue_that_is_shared_leaves_runs_to_living_processes(tmp_path: Path) -> None:
    runs = studies.runs_of(study_spec(flatness=[]), tmp_path)
    (_, held), *others = runs
    held.path.mkdir(parents=True)
    claim = replace(Claim.new(lease=60.0), machine="another machine")
    (held.path / NAME).write_bytes(claim.content())
    for is_shared in (True, False):
        queue = RunQueue(runs, shared=is_shared)
        assert [queue.next().directory for _ in others] == [directory for _, directory in others]
        assert queue.next() is None
        assert not queue.is_over, "nobody knows whether its process lives"
        (held.path / NAME).write_bytes(replace(claim, beat=claim.beat + 1).content())
        assert queue.next() is None
        assert queue.is_over == is_shared, "a process that compares waits for all runs"
        (held.path / NAME).write_bytes(claim.content())
    (held.path / NAME).unlink()
    assert queue.next().directory == held
    assert queue.is_over


def test_a_process_that_compares_waits_for_the_runs_of_others(tmp_path: Path) -> None:
    """Another process carries out the first run meanwhile."""
    spec = study_spec(flatness=[], seeds=[0])
    (first, directory), _ = studies.runs_of(spec, tmp_path)

    class Meanwhile(Watched):
        def run_ended(self, spec, run) -> None:
            super().run_ended(spec, run)
            if spec.label != first.label:
                held.__exit__(None, None, None)

    held = directory.writing()
    held.__enter__()
    runs = studies.carry_out_study(spec, tmp_path, watched := Meanwhile())
    assert [run.method for run in runs] == ["FedAvg", "FedSAM"]
    assert watched.finished == ["FedSAM-seed0", "FedAvg-seed0"]


def test_a_run_that_fails_is_left_out_by_all_and_tried_again_by_resume(tmp_path: Path) -> None:
    spec = study_spec(methods=[WILD, "fedavg"], seeds=[0], flatness=[])
    failures = studies.share_study(spec, tmp_path, watched := Watched())
    assert [type(one) for one in failures] == [NonFiniteError]
    assert (watched.failed, watched.finished) == (["FedSAM-seed0"], ["FedAvg-seed0"])
    assert counts(found := run_statuses(runs_in(tmp_path), ClaimObserver())) == {"finished": 1, "failed": 1}
    assert str(failures[0]) in found[0].error
    assert studies.share_study(spec, tmp_path, again := Watched()) == []
    assert again.started == []
    studies.carry_out_study(spec, tmp_path, resumed := Watched())
    assert resumed.failed == ["FedSAM-seed0"]


def test_a_run_that_cannot_be_built_is_left_out_by_the_next_process_too(tmp_path: Path) -> None:
    spec = study_spec(methods=["fedavg"], seeds=[0], participation=11, flatness=[])
    [error] = studies.share_study(spec, tmp_path)
    assert "participation = 11" in str(error)
    assert counts(found := run_statuses(runs_in(tmp_path), ClaimObserver())) == {"failed": 1}
    assert str(error) in found[0].error
    assert studies.share_study(spec, tmp_path, again := Watched()) == []
    assert again.failed == []


def test_an_error_in_one_run_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = study_spec(seeds=[0], flatness=[])
    usual, begun = studies.RunExecution.carry_out, list[str]()

    def fails_once(execution: studies.RunExecution) -> object:
        begun.append(execution.spec.label)
        if len(begun) == 1:
            raise OSError(28, "No space left on device")
        return usual(execution)

    monkeypatch.setattr(studies.RunExecution, "carry_out", fails_once)
    failures = studies.share_study(spec, tmp_path, watched := Watched())
    assert [str(one) for one in failures] == ["[Errno 28] No space left on device"]
    assert (watched.failed, watched.finished) == (["FedAvg-seed0"], ["FedSAM-seed0"])


def test_what_status_says_of_every_state(tmp_path: Path) -> None:
    spec = study_spec(methods=["fedavg"], seeds=[0, 1, 2, 3, 4], rounds=2, flatness=[])
    studies.begin_study(spec, tmp_path)
    assert counts(run_statuses(runs_in(tmp_path), ClaimObserver())) == {"waiting": 5}
    runs = studies.runs_of(spec, tmp_path)
    studies.carry_out_study(study_spec(methods=["fedavg"], seeds=[0], rounds=2, flatness=[]), tmp_path)
    studies.write_study(spec, tmp_path)

    def claim(number: int, **changes: object) -> None:
        path = runs[number][1].path
        path.mkdir(parents=True, exist_ok=True)
        content = replace(Claim.new(lease=0.2), machine="another machine", done=1, rounds=2, **changes).content()
        (path / NAME).write_bytes(content)

    observer = ClaimObserver()
    claim(1)
    claim(2)
    assert [one.state for one in run_statuses(runs, observer)] == [
        "finished",
        "running",
        "running",
        "waiting",
        "waiting",
    ]
    wait_until(lambda: run_statuses(runs, observer)[1].state == "silent", "the end of the lease")
    claim(2, beat=1)
    found = run_statuses(runs, observer)
    assert [one.state for one in found] == ["finished", "silent", "running", "waiting", "waiting"]
    assert [one.done for one in found] == [2, 1, 1, 0, 0]
    assert found[1].claim.holder.startswith("process ")


def test_the_commands(fedflat, tmp_path: Path) -> None:
    spec = study_spec(seeds=[0], flatness=[])
    Path("study.toml").write_text(spec.to_toml())
    code, out, err = fedflat("work study.toml --out shared")
    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines()[1::2]] == [
        ["FedAvg-seed0", "begins", "with"], ["FedSAM-seed0", "begins", "with"], ["nothing", "left", "to"],
    ]  # fmt: skip
    assert fedflat("work shared")[1].endswith("\nnothing left to do here: 2 finished in shared\n")
    assert fedflat("status shared")[:2] == (0, "2 runs: 2 finished\n")
    code, out, _ = fedflat("report shared")
    assert (code, "FedSAM" in out) == (0, True)
    run = next(path for path in Path("shared/runs").iterdir())
    assert fedflat(f"status {run}")[:2] == (0, "1 runs: 1 finished\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("work", "work needs the TOML file of a study or the folder of one; see `fedflat work --help`"),
        ("work nowhere", "nowhere"),
        ("work empty", "empty"),
        ("work begun --rounds 3", "--rounds: the settings of the study in begun are fixed; leave it out"),
        ("work begun --out elsewhere", "--out: the settings of the study in begun are fixed; leave it out"),
        ("work begun --lease 0", "lease must be more than 0 and at most 86400 seconds, got 0.0"),
        ("work run.toml", "method: run.toml is the file of a run; use `fedflat run run.toml`"),
        ("work begun --jobs none", "jobs"),
        ("status empty", "empty holds neither a run (config.toml) nor a study (study.toml)"),
        ("status begun --watch 0", "--watch 0.0 must be more than 0"),
    ],
)
def test_a_mistake_is_one_line(fedflat, tmp_path: Path, words: str, line: str) -> None:
    studies.begin_study(study_spec(flatness=[]), tmp_path / "begun")
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.toml").write_text('method = {name = "fedavg"}\n')
    code, out, err = fedflat(words)
    assert (code, out) == (2, "")
    assert err.startswith("fedflat: ")
    assert line in err
    assert err.count("\n") == 1


def test_watching_ends_with_the_study(fedflat, tmp_path: Path) -> None:
    studies.carry_out_study(study_spec(seeds=[0], flatness=[]), tmp_path / "shared")
    assert fedflat("status shared --watch 1") == (0, "2 runs: 2 finished\n", "")

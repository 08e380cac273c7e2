"""A study on Slurm, with the script that users submit and the real scheduler."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from fedflat.experiments import studies
from fedflat.experiments.claims import NAME, read_claim
from fedflat.experiments.jobs import Jobs
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.spec import StudySpec
from fedflat.experiments.study_status import runs_in
from support.effort import in_test_all
from support.fresh_process import SOURCE
from support.processes import wait_until
from support.slurm import Cluster, slurm
from support.studies import study_spec

SCRIPT = Path(__file__).parents[2] / "examples" / "slurm" / "work.sbatch"
ENDED = {"COMPLETED", "FAILED"}
pytestmark = [in_test_all, pytest.mark.skipif(sys.platform != "linux", reason="Slurm is Linux's")]


def under_way(folder: Path) -> dict[str, tuple[int, Path]]:
    """The tasks that have saved a round of the run that they hold, with their process and the run's folder."""
    found = {}
    for path in folder.glob(f"runs/*/{NAME}"):
        claim = read_claim(path.parent)
        if claim is not None and claim[1] is not None and RunDirectory(path.parent).checkpoints:
            found[_task_of(claim[1].pid)] = claim[1].pid, path.parent
    return found


def _task_of(process: int) -> str:
    try:
        variables = Path(f"/proc/{process}/environ").read_text().split("\0")
    except OSError:  # it has ended
        return ""
    return next(one.partition("=")[2] for one in variables if one.startswith("SLURM_ARRAY_TASK_ID="))


def next_under_way(shared: Path, hurt: dict[str, Path]) -> tuple[str, int]:
    """A task that nothing has happened to yet, and its process; its run is then among the `hurt`."""
    wait_until(lambda: under_way(shared).keys() - hurt - {""}, "a task that has saved a round")
    task, (pid, path) = next((task, one) for task, one in under_way(shared).items() if task and task not in hurt)
    hurt[task] = path
    return task, pid


def hurt_tasks(cluster: Cluster, job: str, shared: Path) -> dict[str, Path]:
    """Kill two tasks, drain the node of a third and signal it as before a time limit; return their runs' folders."""
    hurt: dict[str, Path] = {}
    task, _ = next_under_way(shared, hurt)
    cluster.call("scancel", "--signal=KILL", f"{job}_{task}.0")
    _, pid = next_under_way(shared, hurt)
    os.kill(pid, signal.SIGKILL)
    task, _ = next_under_way(shared, hurt)
    node = cluster.tasks(job)[task]["NodeList"]
    cluster.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
    cluster.call("scancel", "--signal=TERM", f"{job}_{task}")
    wait_until(lambda: cluster.tasks(job)[task]["Restarts"] == "1", "the task to be in the queue again")
    wait_until(lambda: cluster.tasks(job)[task]["JobState"] in ENDED | {"RUNNING"}, "the task to run again")
    assert cluster.tasks(job)[task]["NodeList"] != node
    return hurt


def models(folder: Path) -> dict[str, str]:
    found = folder.glob("runs/*/model.safetensors")
    return {path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def submit(cluster: Cluster, folder: Path, spec: StudySpec, *options: str) -> str:
    """Submit the script for a study with its files in `folder`; return the job's number."""
    (folder / "study.toml").write_text(spec.to_toml())
    command = folder / "fedflat"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m fedflat "$@"\n')
    command.chmod(0o755)
    words = ["--cpus-per-task=1", *options, str(SCRIPT), str(folder / "study.toml"), str(folder / "shared")]
    return cluster.call("sbatch", "--parsable", *words, FEDFLAT=str(command), PYTHONPATH=str(SOURCE)).strip()


def test_of_four_tasks_two_are_killed_and_one_is_requeued_from_a_node_that_is_drained(tmp_path: Path) -> None:
    spec = study_spec(methods=["fedavg", "fedsam", "scaffold"], seeds=[0, 1, 2, 3], rounds=60, flatness=[])
    studies.carry_out_study(spec, tmp_path / "alone", jobs=Jobs(2))
    shared = tmp_path / "shared"
    with slurm(tmp_path / "slurm", ["node1", "node2", "node3", "node4"]) as cluster:
        job = submit(cluster, tmp_path, spec)
        hurt = hurt_tasks(cluster, job, shared)
        wait_until(lambda: all(one["JobState"] in ENDED for one in cluster.tasks(job).values()), "all tasks to end")
        tasks = cluster.tasks(job)
    logs = {path.name: path.read_text() for path in tmp_path.glob(f"fedflat-{job}_*.log")}
    first, second, third = hurt
    assert {task: one["ExitCode"] for task, one in tasks.items()} == dict.fromkeys(tasks, "0:0") | {
        first: "137:0", second: "137:0",
    }, logs  # fmt: skip
    assert {task for task, one in tasks.items() if one["Restarts"] != "0"} == {third}
    assert models(shared) == models(tmp_path / "alone")
    assert len(models(shared)) == 12
    ended = Counter(line.split()[0] for log in logs.values() for line in log.splitlines() if " test accuracy " in line)
    assert ended == dict.fromkeys((one.label for one in spec.runs()), 1), logs
    assert not list(shared.glob(f"runs/*/{NAME}"))
    assert not any(directory.damaged_files() for _, directory in runs_in(shared))
    segments = [json.loads((path / "env.json").read_text()) for path in hurt.values()]
    assert all(len(one) >= 2 for one in segments), "another process went on with the run"


def test_before_its_time_limit_a_task_saves_its_round_and_goes_on_in_the_queue_until_it_is_cancelled(
    tmp_path: Path,
) -> None:
    spec = study_spec(methods=["fedavg"], seeds=[0], rounds=50_000, flatness=[], checkpoint_every=50_000)
    with slurm(tmp_path / "slurm", ["node1"]) as cluster:
        job = submit(cluster, tmp_path, spec, "--array=0-0", "--time=1", "--signal=TERM@20")
        log = tmp_path / f"fedflat-{job}_0.log"
        wait_until(lambda: cluster.tasks(job)["0"]["Restarts"] == "1", "the task to be in the queue again")
        wait_until(lambda: log.read_text().count(" begins with round ") == 2, "the task to go on")
        (saved,) = re.findall(r"fedflat: stopped; round (\d+) of 50000", log.read_text())
        again = re.findall(r" begins with round (\d+) of 50000", log.read_text())
        assert again == ["1", str(int(saved) + 1)], "no round is lost, though no checkpoint was due"
        cluster.call("scancel", job)
        wait_until(lambda: not cluster.call("squeue", "-h"), "the end of the task")
        task = cluster.tasks(job)["0"]
        assert (task["JobState"], task["Restarts"]) == ("CANCELLED", "1")

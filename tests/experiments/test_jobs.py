"""Runs at a time, and the GPU of each: on a machine that seems to have four, whose processes say what they see."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedflat.core.errors import InputError
from fedflat.engine.workers.process import WorkerProcess
from fedflat.experiments import parallel, studies
from fedflat.experiments.jobs import VISIBLE, Jobs, gpus_of_jobs, least_used, visible_gpus
from fedflat.experiments.run_directory import RunDirectory
from fedflat.experiments.spec import RunSpec
from support.studies import study_spec
from support.watching import Watched

MIG = "MIG-1e3ab1a9-5bdc-5c76-8f1c-3b3b7d6f4a02", "MIG-2f1bc1a9-5bdc-5c76-8f1c-3b3b7d6f4a02"


@pytest.mark.parametrize(
    ("listed", "number", "expected"),
    [
        (None, 4, ["0", "1", "2", "3"]),
        (None, 0, []),
        ("", 0, []),
        ("2,3", 2, ["2", "3"]),
        (" 3, 1 ,", 2, ["3", "1"]),
        ("0,1,-1,2", 2, ["0", "1"]),  # CUDA stops at the first unknown name
        ("GPU-8932f937-d72c,GPU-7a1b", 2, ["GPU-8932f937-d72c", "GPU-7a1b"]),
        (",".join(MIG), 1, list(MIG)),  # a process uses only the first
        (MIG[0], 0, []),  # and no GPU works
    ],
)
def test_gpus_are_those_that_cuda_uses(listed: str | None, number: int, expected: list[str]) -> None:
    assert visible_gpus(listed, number) == expected


def test_a_gpu_with_the_fewest_processes_is_next() -> None:
    gpus, used = ["3", "1"], []
    for _ in range(4):
        used.append(least_used(gpus, used))
    assert used == ["3", "1", "3", "1"]
    used.remove("1")
    assert least_used(gpus, used) == "1", "the place of a process that has ended"


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process alone: the workers have the CPU, and the environment that they would have."""
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("device", "jobs", "runs", "expected"),
    [
        ("cuda", Jobs("auto"), 24, 4),
        ("auto", Jobs("auto"), 24, 4),
        ("cuda", Jobs("auto"), 3, 3),
        ("cuda", Jobs("auto", 2), 24, 8),
        ("cuda", Jobs(3), 24, 3),
        ("cuda", Jobs(8, 2), 24, 8),
        ("cuda", Jobs(1), 24, 1),
        ("cuda", Jobs(8), 4, 4),
        ("cuda:1", Jobs(3), 24, 3),
        ("cuda:1", Jobs("auto"), 24, 1),
        ("cpu", Jobs(3), 24, 3),
    ],
)
def test_runs_at_a_time(device: str, jobs: Jobs, runs: int, expected: int) -> None:
    assert jobs.count(device, runs) == expected


@pytest.mark.usefixtures("four_gpus")
def test_more_runs_than_gpus_need_permission_to_share() -> None:
    message = r"^--jobs 6: 6 runs at a time on 4 GPU\(s\), with --jobs-per-gpu 1; set --jobs-per-gpu 2, or fewer jobs$"
    with pytest.raises(InputError, match=message):
        Jobs(6).count("cuda", 24)


def test_on_the_cpu_auto_is_a_run_for_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert gpus_of_jobs("cpu") == gpus_of_jobs("auto") == []
    assert (Jobs("auto").count("auto", 24), Jobs("auto").count("cpu", 3)) == (5, 3)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2", None])
def test_wrong_numbers_are_refused(wrong: object) -> None:
    with pytest.raises(InputError, match=r"^jobs must be 'auto' or an integer of at least 1, got"):
        Jobs(wrong)
    with pytest.raises(InputError, match=r"^jobs_per_gpu must be an integer of at least 1, got"):
        Jobs("auto", wrong)


def seen(path: Path) -> list[str | None]:
    """What the processes of a study's runs saw in CUDA_VISIBLE_DEVICES."""
    return [json.loads(file.read_text())[-1]["visible gpus"] for file in sorted(path.glob("runs/*/env.json"))]


def models(path: Path) -> list[bytes]:
    """The models of a study's runs, by seed and method."""
    files = path.glob("runs/*/model.safetensors")
    return [file.read_bytes() for file in sorted(files, key=lambda file: file.parent.name.rpartition("-")[0])]


class Placed(Watched):
    """Keeps where runs were started."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}

    def run_placed(self, spec: RunSpec, place: str) -> None:
        self.places[spec.label] = place


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
@pytest.mark.usefixtures("four_gpus", "forked_processes")
def test_each_of_eight_runs_sees_one_gpu_and_has_the_bits_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def process(*arguments: Any, variables: dict[str, str], **others: Any) -> WorkerProcess:
        given.append(variables[VISIBLE])
        return WorkerProcess(*arguments, variables=variables, **others)

    monkeypatch.setattr(parallel, "WorkerProcess", process)
    spec = study_spec(methods=["fedavg", "fedsam"], seeds=[0, 1, 2, 3], rounds=2, flatness=[], device="auto")
    studies.carry_out_study(spec, tmp_path / "four", watched := Placed(), Jobs("auto"))
    found = seen(tmp_path / "four")
    assert len(found) == 8
    assert given[:4] == ["0", "1", "2", "3"], "four workers are started at once"
    assert set(found) <= set(given)
    assert sorted(watched.places.values()) == sorted(f"GPU {gpu}" for gpu in found)
    studies.carry_out_study(spec.model_copy(update={"device": "cpu"}), tmp_path / "alone")
    assert models(tmp_path / "four") == models(tmp_path / "alone")


GREEDY = """
import torch

from fedflat.methods.fedavg import FedAvg


class Greedy(FedAvg):
    def step(self, w, client, down, grad, ctx):
        if ctx.t == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\\nGPU 0 has 8.00 GiB")
        return super().step(w, client, down, grad, ctx)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
@pytest.mark.usefixtures("four_gpus", "forked_processes")
def test_a_run_without_memory_is_left_out_and_the_others_finish(
    fedflat: Callable[[str], tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(GREEDY)
    spec = study_spec(methods=["fedavg"], seeds=[0, 1], rounds=3, flatness=[], device="auto", executor="sequential")
    (tmp_path / "study.toml").write_text(spec.to_toml().replace("methods = [", 'methods = ["own.py:Greedy",'))
    code, out, error = fedflat("compare study.toml --out out --jobs auto")
    assert code == 2
    assert out.count("left out: too little memory") == 2
    assert error.startswith("fedflat: memory was too short for Greedy-seed0, Greedy-seed1; ")
    assert "a smaller --jobs-per-gpu resumes what is left" in error
    assert len(error.strip().splitlines()) == 1
    assert sum(RunDirectory(folder).is_finished for folder in (tmp_path / "out" / "runs").iterdir()) == 2

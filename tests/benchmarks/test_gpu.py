"""Everything that needs a GPU, as far as it can be tried without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu, gpu_parts
from benchmarks.gpu_page import UNMEASURED, page_part
from benchmarks.gpu_parts import PARTS, Finding, Setting
from benchmarks.results import Results
from fedflat.engine import prepared
from fedflat.engine import simulation as simulations
from support.effort import chosen
from support.files import refused
from support.processes import PATIENCE, has_ended, wait_until

ROOT = Path(__file__).parents[2]
HERE = Setting("cpu", quick=True, repeats=2)
NOT_HERE = {"CUDA graphs", "waits"}
TIMED = ("W1", "W4", "W2", "W5")


class OnGpu(Setting):
    """The CPU, which passes for a GPU."""

    @property
    def is_gpu(self) -> bool:
        return True


def asked(out: Path, **given: object) -> Namespace:
    return Namespace(
        **{"out": out, "device": "cpu", "quick": True, "minutes": 1.0, "repeats": None, "only": []} | given
    )


@pytest.mark.slow
@pytest.mark.usefixtures("forked_processes")
def test_all_of_it_runs_on_the_cpu_and_makes_the_page(tmp_path: Path) -> None:
    """The command as it is given; what one part may take is not known, so it has all the time."""
    parts = chosen(["precision", "ranks", "waits"], list(PARTS))  # others compile for a minute
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks.gpu"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    both = [
        [*command, "--device", "cpu", "--quick", "--minutes", "60", "--out", str(out), "--only", *parts],
        [*command, "--page", str(out)],
    ]
    ended = [subprocess.run(one, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=5 * PATIENCE,
                            check=False) for one in both]  # fmt: skip
    assert [one.returncode for one in ended] == [0, 0], ended[0].stdout + ended[0].stderr
    results = Results.load(out)
    assert set(results.parts) == set(parts)
    assert {name: facts["ended"] for name, facts in results.parts.items()} == {
        name: "not measured on cpu" if name in NOT_HERE else "ran" for name in parts
    }
    for name in set(parts) - NOT_HERE - set(TIMED):
        assert all(one["passed"] for one in results.parts[name]["findings"]), name
    for part in set(parts) & set(TIMED):
        found = {one.name: one for one in results.measured.of(part)}
        assert {"bare-tuned", "FedAvg sequential"} < set(found)
        assert ("FedAvg stacked" in found) == (part != "W4")
        assert all(len(one.wall) == 2 and min(one.wall) > 0 for one in found.values())
    if "W2" in parts and Path("/proc/self/clear_refs").exists():
        assert results.measured.find("W2", "FedAvg sequential").bytes[0] > 0
    page = ended[1].stdout
    assert page.startswith(f"cpu, CUDA {torch.version.cuda or 'none'}; ")
    assert all(f"\n| {name} | " in page for name in parts)
    assert "| ranks | FedSMOO | yes | the same bits by 2 ranks and alone |" in page
    assert {line.count("|") for line in page.splitlines() if line.startswith("|")} == {5, 9}


def test_what_does_not_agree_is_told_with_the_exit_code_after_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(name: str, *_: object) -> tuple[dict[str, object], list[object]]:
        wrong = {"what": "FedAvg", "text": "1e-02 a|part", "passed": name != "ranks", "figures": {}}
        moment = {"load": 0.5}
        return gpu._nothing("ran") | {"findings": [wrong], "begin": moment, "end": moment}, []

    monkeypatch.setattr(gpu, "part_result", found)
    assert gpu.try_all(asked(tmp_path / "a.json", only=["waits", "precision"])) == 0
    assert list(Results.load(tmp_path / "a.json").parts) == ["precision", "waits"]
    assert gpu.try_all(asked(tmp_path / "b.json")) == 1
    assert "  WRONG: FedAvg: 1e-02 a|part\n" in capsys.readouterr().out
    assert "| ranks | FedAvg | NO | 1e-02 a\\|part |" in page_part(Results.load(tmp_path / "b.json"))


def test_mistakes_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    with refused("'W9'", "self-test"):
        gpu.try_all(asked(tmp_path / "a.json", only=["W9"]))
    with refused("nowhere", "cannot be written"):
        gpu.try_all(asked(tmp_path / "nowhere" / "a.json"))


def test_a_part_without_time_is_left_out() -> None:
    facts, measured = gpu.part_result("W1", HERE, 0.0)
    assert (facts["ended"], facts["failed"], measured) == ("left out: no time", False, [])


def test_a_part_ends_with_an_error_in_one_line_and_what_it_found_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(_: Setting) -> Iterator[Finding]:
        yield Finding("first", "found", True)
        raise RuntimeError("CUDA error: an illegal memory access\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setitem(PARTS, "W1", some)
    gpu.take({"part": "W1"} | vars(HERE), tmp_path / "part.json")
    content = json.loads((tmp_path / "part.json").read_text())
    assert content["ended"] == "RuntimeError: CUDA error: an illegal memory access"
    assert content["failed"]
    assert [one["text"] for one in content["findings"]] == ["found"]


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_with_those_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is over when both have begun, however long that takes here."""
    ids = tmp_path / "ids"

    class Awaited(subprocess.Popen):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None and "sleep" in self.args[-1]:
                wait_until(ids.exists, "two processes")
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().wait(timeout)

    monkeypatch.setattr(gpu.subprocess, "Popen", Awaited)
    code = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({f"{ids}.new"!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
os.replace({f"{ids}.new"!r}, {str(ids)!r})
time.sleep(600)
"""
    assert gpu.run_for([sys.executable, "-c", code], PATIENCE) == "stopped: it took too long"
    for process in map(int, ids.read_text().split()):
        wait_until(lambda process=process: has_ended(process), "its end")
    assert (
        gpu.run_for([sys.executable, "-c", "import os; os.abort()"], PATIENCE) == "the process ended with exit code -6"
    )
    assert gpu.run_for([sys.executable, "-c", ""], PATIENCE) == ""


class AsItIs(prepared.GraphedStep):
    """In place of a recording: the step as a function of tensors."""

    def prepare(self, step: prepared.TensorStep, inputs: object) -> prepared.Run:
        return lambda values: step(*values)


class Refused(prepared.GraphedStep):
    def prepare(self, step: prepared.TensorStep, inputs: object) -> prepared.Run:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(("kind", "told"), [(AsItIs, "1 recording(s), "), (Refused, "not recorded, ")])
def test_graphs_are_counted_and_compared(kind: type, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_parts.trials, "METHODS", ("FedSMOO",))
    monkeypatch.setattr(simulations, "check_name", lambda *_: None)
    monkeypatch.setattr(prepared, "GraphedStep", kind)
    [found] = gpu_parts.graphs(HERE)
    assert found.passed
    assert found.text.startswith(told)
    assert found.figures["recorded"] == (kind is AsItIs)


def test_waits_are_counted_by_place(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def counted() -> Iterator[list[warnings.WarningMessage]]:
        places = [("/a/server.py", 7), ("/a/server.py", 7), ("/b/drift.py", 1)]
        yield [warnings.WarningMessage("waits", UserWarning, *place) for place in places]

    monkeypatch.setattr(gpu_parts, "counted_waits", counted)
    found = list(gpu_parts.waits(HERE))
    assert [one.what for one in found[:2]] == ["FedAvg, sequential", "FedAvg, stacked"]
    assert found[0].text == "3 in a round, most often at server.py:7 2, drift.py:1 1"
    assert found[0].figures == {"waits": 3, "places": {"server.py:7": 2, "drift.py:1": 1}}


def test_memory_of_a_gpu_is_that_of_its_tensors_above_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    on_gpu = OnGpu("cpu", quick=True, repeats=2)
    [one, *_] = gpu_parts.contestants("W5", gpu_parts.work_of("W5", on_gpu), on_gpu)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: calls.append("before") or 1000)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: calls.append("reset"))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: calls.append("peak") or 5000)
    assert gpu_parts.peak_of(one, on_gpu) == 4000
    assert calls == ["before", "reset", "peak"]


def test_a_gpu_trains_whole_rounds_and_of_many_clients_a_few_one_by_one() -> None:
    on_gpu = OnGpu("cpu", quick=False, repeats=2)
    work = gpu_parts.work_of("W5", on_gpu)
    assert (work.timed, work.timed_bare) == (10_000, 100)
    timed = {one.name: one.work.timed for one in gpu_parts.contestants("W5", work, on_gpu)}
    assert timed["FedAvg stacked"] == timed["FedAvg compiled"] == 10_000
    assert timed["FedAvg sequential"] == 100
    names = {one.name for one in gpu_parts.contestants("W4", gpu_parts.work_of("W4", on_gpu), on_gpu)}
    assert names == {"bare-tuned", "bare-best", "FedAvg sequential", "FedSAM sequential", "FedAvg sequential bf16"}


def test_the_gpu_and_its_driver_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 580.1\necho 580.1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=8, major=9, minor=0)
    )
    facts = gpu.device_facts(OnGpu("cpu", quick=False, repeats=2))
    assert (facts["driver"], facts["memory"], facts["capability"]) == ("580.1", 8, "9.0")
    json.dumps(facts)


def test_without_results_the_page_says_so() -> None:
    page = (ROOT / "docs" / "tests.md").read_text()
    assert page_part(None) == UNMEASURED
    assert (UNMEASURED in page) == (not (ROOT / "docs" / "gpu.json").exists())

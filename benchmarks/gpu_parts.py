"""The parts of `python -m benchmarks.gpu`: what each tries and measures on a device, piece by piece."""

from __future__ import annotations

import gc
import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fedflat.engine import trials
from fedflat.engine.prepared import PreparedStep
from fedflat.engine.ranks import ALONE, Ranks, joined
from fedflat.engine.trials import DEVICE_TOLERANCE, counted_waits, dense_agreement, device_trial, executors_on, tried
from fedflat.methods import all_methods, find

from .host import in_a_process_of_its_own
from .implementations import Bare, Implementation, Ours
from .measurement import Measurement
from .parts import BenchmarkPart
from .peak_memory import Peak
from .ranks import command_of
from .results import Settings
from .suite import race
from .workloads import WORKLOADS, Workload

SMALL = {"a small network, batches of 4": ("cnn", 8, 4)}  # what `--quick` times in the self-test
BF16_TOLERANCE = 2**-4  # of the way of double precision: bfloat16 has eight bits, and the errors of many steps add up
RACED = ("W1", "W4", "W2", "W5")
WAITING = ("FedAvg", "FedSMOO", "Scaffold", "FedWMSAM", "MimeLite")  # methods of the table in docs/tests.md
PLACES = 3  # that the host waits at most often, in words; the figures have all of them
WITH_RANKS = ("FedAvg", "FedSMOO")  # without and with records of clients
RANKS = 2
COMMAND = "benchmarks.gpu"  # the module that runs these parts
RANK = "a rank"  # in place of a part's name
FEW_ONE_BY_ONE = 100  # clients of W5 that are timed one at a time
QUICK = {"clients": 4, "cohort": 2, "timed": 2, "timed_bare": 2, "samples": 16, "pool": 64, "steps": 2, "batch": 4}
QUICK_MEMORY = "W2"  # the workload whose memory is measured in quick runs on the CPU
QUICK_RESNET = {"title": "a small network in place of ResNet-18", "model": "cnn", "shape": (3, 8, 8)}


@dataclass(frozen=True)
class Setting:
    """Where and how everything is tried."""

    device: str
    quick: bool
    repeats: int

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def is_gpu(self) -> bool:
        return self.torch_device.type == "cuda"


@dataclass(frozen=True)
class Finding:
    """What came of one try: in words, and in figures."""

    what: str
    text: str
    passed: bool | None = None  # None where nothing was to be checked
    figures: dict[str, Any] = field(default_factory=dict)


Findings = Iterator[Finding | Measurement]


def doctor(setting: Setting) -> Findings:
    """Do what `fedflat doctor --device` does."""
    for check in device_trial(setting.torch_device, SMALL if setting.quick else None):
        yield Finding(check.part, check.text, check.passed)


def agreement(setting: Setting) -> Findings:
    """Compare the executors with the CPU for every method of a federation that the self-test has not tried."""
    names = [name for name, cls in all_methods().items() if cls.training == "federated" and name not in trials.METHODS]
    for name in names[:2] if setting.quick else names:
        check = tried(name, partial(dense_agreement, name, setting.torch_device))
        yield Finding(check.part, check.text, check.passed)


def graphs(setting: Setting) -> Findings:
    """Record local steps as CUDA graphs: one recording serves all batches, and replays are the steps one by one."""
    for name in trials.METHODS:
        alone, sim = (trials.simulation(find(name)(), how, setting.device) for how in ("sequential", "graphed"))
        apart = distance(trials.trajectory(sim), trials.trajectory(alone))
        step = cast(PreparedStep, sim.executor.step)
        text = f"{f'{len(step.forms)} recording(s)' if step.works else 'not recorded'}, {apart:.0e} from one by one"
        figures = {"recorded": step.works, "recordings": len(step.forms), "apart": apart}
        yield Finding(name, text, apart <= DEVICE_TOLERANCE, figures)


def precision(setting: Setting) -> Findings:
    """Compare models after training in single precision and in bfloat16 with those in double precision."""
    for executor in executors_on(setting.torch_device):
        if executor != "compiled":  # of which one precision takes long enough
            yield _precision(executor, setting.device)


def _precision(executor: str, device: str) -> Finding:
    kinds = {"double": {}, "fp32": {"dtype": torch.float32}, "bf16": {"dtype": torch.float32, "precision": "bf16"}}
    sims = {kind: trials.simulation(find("FedSAM")(), executor, device, **how) for kind, how in kinds.items()}
    begin = sims["double"].w.double()
    way = {kind: trials.trajectory(sim)[-1].double() - begin for kind, sim in sims.items()}
    apart = {kind: distance(way[kind], way["double"]) for kind in ("fp32", "bf16")}
    passed = apart["fp32"] < apart["bf16"] <= BF16_TOLERANCE
    text = f"fp32 {apart['fp32']:.0e}, bf16 {apart['bf16']:.0e} of the way, at most {BF16_TOLERANCE:.0e}"
    return Finding(f"FedSAM, {executor}", text, passed, apart)


def ranks(setting: Setting) -> Findings:
    """Train by two ranks that share the device, and alone; time a round of W1 by both, not in turns."""
    alone, shared = ranks_result(setting, ALONE), _by_ranks(setting)
    for name in WITH_RANKS:
        expected, found = (torch.tensor(x["models"][name], dtype=torch.float64) for x in (alone, shared))
        same, apart = torch.equal(found, expected), distance(found, expected)
        text = f"{'the same bits' if same else f'other bits, {apart:.0e} apart'} by {RANKS} ranks and alone"
        passed = same or (setting.is_gpu and apart <= DEVICE_TOLERANCE)  # sums of a GPU may have any order
        yield Finding(name, text, passed, {"same": same, "apart": apart})
    for who, result in (("one process", alone), (f"{RANKS} ranks", shared)):
        yield Measurement("ranks", who, wall=result["seconds"], alone=True)


def _by_ranks(setting: Setting) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "result.json"
        command = command_of(COMMAND, RANKS, {"part": RANK} | vars(setting), into)
        code = subprocess.run(command, check=False).returncode  # noqa: S603 (this interpreter)
        if code:
            raise RuntimeError(f"torchrun ended with exit code {code}; its lines are on the terminal")
        return json.loads(into.read_text())


def as_rank(setting: Setting, into: Path) -> None:
    """Be one of the ranks; the first of them leaves the result."""
    with joined() as found:
        result = ranks_result(setting, found)
        if found.index == 0:
            into.write_text(json.dumps(result))


def ranks_result(setting: Setting, found: Ranks) -> dict[str, Any]:
    """Return the models of small simulations, and the seconds of rounds of W1."""
    models = {}
    for name in WITH_RANKS:
        sim = trials.simulation(find(name)(), "sequential", setting.device, ranks=found)
        models[name] = trials.trajectory(sim)[-1].tolist()
    prepared = Ours(work_of("W1", setting), "FedAvg", ranks=found, device=setting.device).prepare()
    seconds = [prepared.time()[1] for _ in range(setting.repeats + 1)]
    return {"models": models, "seconds": seconds[1:]}


def waits(setting: Setting) -> Findings:
    """Count how often the host waits for the GPU in the second round of three clients, and where."""
    for name in WAITING:
        for executor in executors_on(setting.torch_device):
            if executor != "compiled":
                yield _waits(name, executor, setting.device)


def _waits(name: str, executor: str, device: str) -> Finding:
    sim = trials.simulation(find(name)(), executor, device)
    sim.round()
    with counted_waits() as found:
        sim.round()
    places = Counter(f"{Path(one.filename).name}:{one.lineno}" for one in found)
    often = ", ".join(f"{place} {n}" for place, n in places.most_common(PLACES))
    text = f"{len(found)} in a round{f', most often at {often}' if often else ''}"
    return Finding(f"{name}, {executor}", text, figures={"waits": len(found), "places": dict(places)})


def race_on(name: str, setting: Setting) -> Findings:
    """Time rounds of a workload in turns, after the peak of memory of a first round of each."""
    work = work_of(name, setting)
    part = BenchmarkPart(name, contestants(name, work, setting), work.settings())
    text = f"{work.title}; clients {work.cohort}, local steps {work.steps}, batches of {work.batch}"
    yield Finding("work", text, figures=part.settings)
    peaks = peaks_of(part, setting)
    for found in race(part, Settings(setting.repeats, quick=setting.quick)):
        peak = peaks.get(found.name)
        yield replace(found, bytes=[] if peak is None else [peak])


def work_of(name: str, setting: Setting) -> Workload:
    """Return a workload: on a GPU whole rounds, and in quick runs a few steps of small batches."""
    work = WORKLOADS[name]
    if setting.quick:
        return replace(work, rounds=1, **QUICK | (QUICK_RESNET if name == "W4" else {}))
    return replace(work, timed=work.cohort, timed_bare=work.timed_bare or work.cohort) if setting.is_gpu else work


def contestants(name: str, work: Workload, setting: Setting) -> list[Implementation]:
    """Return who takes turns: plain loops, FedAvg by every executor that suits the model, others by the usual one."""
    device, is_dense = setting.device, work.model == "mlp"
    usual = "stacked" if is_dense else "sequential"
    names = [*executors_on(setting.torch_device)]
    if not is_dense or setting.quick:  # compiling takes seconds, and does not pay for convolutions
        names.remove("compiled")
    if name == "W4":  # a stack would hold one client
        names.remove("stacked")
    few = replace(work, timed=min(work.timed, FEW_ONE_BY_ONE)) if name == "W5" else work
    one_by_one = {"sequential": few, "graphed": few}
    return [
        Bare(work, False, True, device),
        *([] if is_dense else [Bare(work, True, True, device)]),
        *(Ours(one_by_one.get(how, work), "FedAvg", device=device, executor=how) for how in names),
        Ours(work, "FedSAM", device=device, executor=usual),
        Ours(work, "FedAvg", "bf16", device=device, executor=usual),
    ]


def peaks_of(part: BenchmarkPart, setting: Setting) -> dict[str, float | None]:
    """Return peaks of memory by name; on the CPU each has a process of its own, which keeps nothing of the others."""
    every = part.implementations
    if setting.is_gpu:
        peak_of(every[0], setting)  # what libraries keep from the first call on is nobody's
        return {one.name: peak_of(one, setting) for one in every}
    chosen = every if not setting.quick else every[:2] if part.name == QUICK_MEMORY else []
    return {one.name: in_a_process_of_its_own(peak_of, one, setting) for one in chosen}


def peak_of(one: Implementation, setting: Setting) -> float | None:
    """Return the bytes at the peak of setting up and a first round, above what there was before.

    On a GPU these are the bytes of tensors there, on the CPU those of the process; None where it is not told.
    """
    gc.collect()
    host = Peak()
    before = torch.cuda.memory_allocated(setting.device) if setting.is_gpu else 0
    if setting.is_gpu:
        torch.cuda.reset_peak_memory_stats(setting.device)
    prepared = one.prepare()
    prepared.run()
    peak = torch.cuda.max_memory_allocated(setting.device) - before if setting.is_gpu else host.bytes()
    prepared.close()
    return peak


def distance(found: Tensor, expected: Tensor) -> float:
    """Return how far two tensors are apart, relative to the length of `expected`."""
    return float((found - expected).norm() / expected.norm())


PARTS: dict[str, Callable[[Setting], Findings]] = {
    "self-test": doctor,
    "agreement": agreement,
    "CUDA graphs": graphs,
    "precision": precision,
    "ranks": ranks,
    "waits": waits,
    **{name: partial(race_on, name) for name in RACED},
}
ON_GPU_ONLY = ("CUDA graphs", "waits")

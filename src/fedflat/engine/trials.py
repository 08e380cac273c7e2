"""Trials of a method and of a device on small problems.

`TRIALS` checks the properties that a simulation requires of every method; `device_trial` checks that all executors
agree on a device, and measures how fast they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.method import Method
from ..core.method_contract import require
from ..data import FederatedData
from ..files import temporary_folder
from ..methods import find
from ..rounds.device import device_name, one_thread
from ..rounds.local_training import Client
from .choice import Trial
from .prepared import PreparedStep
from .simulation import Simulation

ROUNDS = (4, 16, 64, 256, 1024)  # the trial has the first number of rounds that the method accepts
SIZES = (9, 2, 14, 5, 7)  # samples of the clients, which therefore take different numbers of steps
TOLERANCE = 1e-12  # relative, in double precision: sums of stacks round differently
# On devices: a plain method, and methods with records, full gradients, a teacher, and two gradients per step.
METHODS = ("FedAvg", "FedSMOO", "MimeLite", "FedGMT", "FedSAM")
DEVICE_TOLERANCE = 1e-9  # relative, in double precision, of the models after four rounds
ENOUGH, MOST = 2.0, 20  # timing of an executor ends after this many seconds, or this many times
WORKLOADS = {  # of docs/performance.md: model, samples of a client, batch size
    "W1, LeNet, batches of 64": ("lenet", 128, 64),
    "W4, ResNet-18 with GroupNorm, batches of 50": ("resnet18-gn-cifar", 100, 50),
}


def problem() -> FederatedData:
    """Return five clients with samples of three classes, from a fixed seed."""
    random = torch.Generator().manual_seed(5)
    clients = [(torch.randn(n, 6, dtype=torch.float64, generator=random) + i,
                torch.randint(3, (n,), generator=random)) for i, n in enumerate(SIZES)]  # fmt: skip
    return FederatedData.from_clients(clients, classes=3)


def simulation(method: Method, executor: str, device: str = "cpu", **settings: Any) -> Simulation:
    """Make a simulation of `method` with three clients a round, with clipping, weight decay and momentum.

    It is in double precision unless `settings`, further arguments of `Simulation`, have another `dtype`.
    """
    client = Client(lr=0.1, lr_decay=0.9, epochs=2, batch_size=4, weight_decay=0.01, max_norm=1.0, momentum=0.5)
    return Simulation("mlp", problem(), method, client, rounds_for(method), 3, executor=executor, device=device,
                      model_options={"hidden": [4]}, workers=1, **{"dtype": torch.float64} | settings)  # fmt: skip


def rounds_for(method: Method) -> int:
    """Return the number of rounds of the trial of a method."""
    for rounds in ROUNDS[:-1]:
        with suppress(InputError):
            method.check_rounds(rounds)
            return rounds
    return ROUNDS[-1]


def trajectory(sim: Simulation) -> Tensor:
    """Return the model after each remaining round, (rounds, d).

    If clients train alone, the models of all clients are concatenated, (rounds, clients d).
    """
    return torch.stack([_models(sim) for _ in sim])


def _models(sim: Simulation) -> Tensor:
    if sim.method.training == "local":
        return torch.cat([sim.own_model(client) for client in range(len(SIZES))])
    return sim.w.clone()


def it_trains(method: Method) -> None:
    """Check that the model changes and stays finite."""
    path = trajectory(simulation(method, "sequential"))
    require(bool(torch.isfinite(path).all()), "the model has NaN or infinity after a round")
    require(bool((path[-1] != path[0]).any()), "the model does not move")


def a_stack_trains_as_one_client_after_another(method: Method) -> None:
    """Check that the executors agree in every round."""
    alone, stacked = (trajectory(simulation(method, executor)) for executor in ("sequential", "stacked"))
    apart = float((alone - stacked).norm() / alone.norm())
    require(apart <= TOLERANCE, f"stacked clients end {apart:.2g} (relative) away from the same clients one by one")


def a_run_resumes_from_a_checkpoint(method: Method) -> None:
    """Check that a resumed run has the bits of an uninterrupted run."""
    expected, first, resumed = (simulation(method, "sequential") for _ in range(3))
    uninterrupted = trajectory(expected)
    first.round()
    with temporary_folder("fedflat-trial-", Path(gettempdir())) as folder:
        first.save(folder / "state.safetensors")
        resumed.load(folder / "state.safetensors")
    require(
        torch.equal(trajectory(resumed), uninterrupted[1:]),
        "a resumed run has other bits; a hook keeps state outside records",
    )


def the_same_run_twice_has_the_same_bits(method: Method) -> None:
    """Check that only the engine draws random numbers."""
    first, second = (trajectory(simulation(method, "sequential")) for _ in range(2))
    require(torch.equal(first, second), "equal runs have different bits; a hook draws random numbers or keeps state")


TRIALS: dict[str, Callable[[Method], None]] = {
    "it trains": it_trains,
    "the same run twice has the same bits": the_same_run_twice_has_the_same_bits,
    "a stack trains as one client after another": a_stack_trains_as_one_client_after_another,
    "a run resumes from a checkpoint": a_run_resumes_from_a_checkpoint,
}


@dataclass(frozen=True)
class DeviceCheck:
    """The result of one part of the trial of a device."""

    part: str
    text: str
    passed: bool = True


def device_trial(
    device: torch.device, workloads: Mapping[str, tuple[str, int, int]] | None = None
) -> Iterator[DeviceCheck]:
    """Try training on `device`, part by part; a part that raises an error counts as failed, and the trial continues.

    workloads: what is timed, in place of `WORKLOADS`.
    """
    yield DeviceCheck("device", device_name(device))
    for name in METHODS:
        yield tried(f"agreement, {name}", partial(dense_agreement, name, device))
    names = [name for name in executors_on(device) if name != "compiled"]
    yield tried("agreement, pictures", partial(_agreement, names, device, _pictures))
    yield tried("the same run twice", partial(_repeated, device))
    yield tried("waits in a round", partial(_waits, device))
    for title, workload in (WORKLOADS if workloads is None else workloads).items():
        yield tried(title, partial(_speed, device, *workload))


def tried(part: str, run: Callable[[], tuple[str, bool]]) -> DeviceCheck:
    """Return the result of `run`: its text, and whether it passed."""
    try:
        return DeviceCheck(part, *run())
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        return DeviceCheck(part, f"{type(error).__name__}: {reason}", passed=False)


def executors_on(device: torch.device) -> list[str]:
    """Return the names of the executors that can run on `device`."""
    return ["sequential", "stacked", "compiled", *(["graphed"] if device.type == "cuda" else [])]


def dense_agreement(name: str, device: torch.device) -> tuple[str, bool]:
    """Compare executors on a small dense network; only one method has compiled steps, since compiling takes seconds."""
    names = [executor for executor in executors_on(device) if executor != "compiled" or name == METHODS[1]]
    return _agreement(names, device, lambda executor, where: simulation(find(name)(), executor, str(where)))


def _agreement(
    executors: list[str], device: torch.device, make: Callable[[str, torch.device], Simulation]
) -> tuple[str, bool]:
    """Return the relative distance of each executor's final model from that on the CPU, and whether all are small."""
    expected = final_model(make("sequential", torch.device("cpu")))[0]
    texts, passed = [], True
    for executor in executors:
        w, note = final_model(make(executor, device))
        apart = float((w - expected).norm() / expected.norm())
        texts.append(f"{executor} {apart:.0e}{note}")
        passed = passed and apart <= DEVICE_TOLERANCE
    return f"{', '.join(texts)} from the CPU, at most {DEVICE_TOLERANCE:.0e}", passed


def final_model(sim: Simulation) -> tuple[Tensor, str]:
    """Return the model after all rounds, on the CPU, and a note on whether its steps could be prepared."""
    for _ in sim:
        pass
    step = sim.executor.step
    note = "" if not isinstance(step, PreparedStep) else f" ({'' if step.works else 'not '}{step.participle})"
    return sim.w.cpu(), note


def _pictures(executor: str, device: torch.device) -> Simulation:
    """Make a simulation of a small convolutional network with pictures that are cropped and flipped."""
    data = _random_pictures((7, 4, 6), (3, 8, 8))
    client = Client(lr=0.05, epochs=2, batch_size=4, weight_decay=0.01, momentum=0.5)
    return Simulation("cnn", data, find("FedSAM")(), client, 4, executor=executor, dtype=torch.float64, device=device,
                      workers=1)  # fmt: skip


def _random_pictures(sizes: tuple[int, ...], shape: tuple[int, ...]) -> FederatedData:
    """Return clients with pictures of noise in ten classes, cropped and flipped in training, from a fixed seed."""
    random = torch.Generator().manual_seed(5)
    clients = [(torch.randint(256, (n, *shape), generator=random, dtype=torch.uint8),
                torch.randint(10, (n,), generator=random)) for n in sizes]  # fmt: skip
    return FederatedData.from_clients(clients, classes=10, augment="crop-flip")


def _repeated(device: torch.device) -> tuple[str, bool]:
    """Compare two equal runs bit by bit. On a GPU, whose sums may have any order, different bits are no failure."""
    first, second = (final_model(_pictures("sequential", device))[0] for _ in range(2))
    if torch.equal(first, second):
        return "the same bits", True
    return f"other bits, {float((first - second).norm() / first.norm()):.0e} apart", device.type != "cpu"


def _waits(device: torch.device) -> tuple[str, bool]:
    """Count how often the host waits for a GPU in a round of three clients; torch counts that on CUDA only."""
    if device.type != "cuda":
        return "counted on a GPU only", True
    counts = []
    for executor in ("sequential", "stacked"):
        sim = simulation(find("FedSMOO")(), executor, str(device))
        sim.round()
        with counted_waits() as waits:
            sim.round()
        counts.append(f"{executor} {len(waits)}")
    return f"FedSMOO: {', '.join(counts)}", True


@contextmanager
def counted_waits() -> Iterator[list[warnings.WarningMessage]]:
    """Collect a warning for each time that the host waits for the GPU inside the block."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            yield waits
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _speed(device: torch.device, model: str, samples: int, batch: int) -> tuple[str, bool]:
    """Measure a client's local step of FedAvg and FedSAM in milliseconds, the shortest of several trials."""
    texts = []
    for executor in executors_on(device):
        if executor == "compiled":  # compiling does not pay for convolutions
            continue
        times = [_step_time(find(name)(), executor, device, model, samples, batch) for name in ("FedAvg", "FedSAM")]
        if None not in times:
            texts.append(f"{executor} {' and '.join(f'{1000 * time:.1f}' for time in times if time)} ms")
    clock = "of the processor" if device.type == "cpu" else "by the clock"
    return f"{', '.join(texts)} a step of FedAvg and FedSAM, {clock}", True


def _step_time(
    method: Method, executor: str, device: torch.device, model: str, samples: int, batch: int
) -> float | None:
    """Measure the seconds of a client's local step; None if a stack holds one client only."""
    data = _random_pictures((samples,) * 2, (3, 32, 32))
    sim = Simulation(model, data, method, Client(batch_size=batch), 1, executor=executor, device=device, workers=1)
    if executor == "stacked" and sim.executor.chunk < 2:
        return None
    with one_thread(device):
        trial = Trial(sim.executor, sim.cohort(0), steps=1)
        trial.run()
        started, times = perf_counter(), list[float]()
        while not times or (perf_counter() - started < ENOUGH and len(times) < MOST):
            times.append(trial.seconds())
    return min(times) / int(trial.plan.steps.sum())

"""A minute's trial of the device that training is to run on: do all executors agree there, and how fast are they?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from ..core.method import Method
from ..data import FederatedData
from ..methods import find
from ..rounds.device import device_name, one_thread
from ..rounds.local_training import Client
from .executors.choice import Trial
from .executors.prepared import PreparedStep
from .method_trial import simulation as dense_simulation
from .simulation import Simulation

# A plain method, one with fields for a round, gradients on all samples, a teacher, two gradients a step.
METHODS = ("FedAvg", "FedSMOO", "MimeLite", "FedGMT", "FedSAM")
TOLERANCE = 1e-9  # relative, in double precision, of the models after four rounds
ENOUGH, MOST = 2.0, 20  # an executor is timed for so many seconds, or so many times
WORKLOADS = {  # of docs/performance.md: model, samples of a client, batch
    "W1, LeNet, batches of 64": ("lenet", 128, 64),
    "W4, ResNet-18 with GroupNorm, batches of 50": ("resnet18-gn-cifar", 100, 50),
}


@dataclass(frozen=True)
class DeviceCheck:
    """What one part of the trial has found."""

    part: str
    text: str
    passed: bool = True


def device_trial(device: torch.device) -> Iterator[DeviceCheck]:
    """Try training on `device`; a part that raises has not passed, and the next one is tried."""
    yield DeviceCheck("device", device_name(device))
    for name in METHODS:
        yield _tried(f"agreement, {name}", partial(_dense_agreement, name, device))
    yield _tried("agreement, pictures", partial(_picture_agreement, device))
    yield _tried("the same run twice", partial(_repeated, device))
    yield _tried("waits in a round", partial(_waits, device))
    for title, workload in WORKLOADS.items():
        yield _tried(title, partial(_speed, device, *workload))


def _tried(part: str, run: Callable[[], tuple[str, bool]]) -> DeviceCheck:
    """Return what `run` finds: a text, and whether it is as expected."""
    try:
        return DeviceCheck(part, *run())
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        return DeviceCheck(part, f"{type(error).__name__}: {reason}", passed=False)


def _executors(device: torch.device) -> list[str]:
    """Those that can run on `device`."""
    return ["sequential", "stacked", "compiled", *(["graphed"] if device.type == "cuda" else [])]


def _dense_agreement(name: str, device: torch.device) -> tuple[str, bool]:
    """Four rounds of a small dense network; steps are compiled for one method only, since that takes seconds."""
    names = [one for one in _executors(device) if one != "compiled" or name == METHODS[1]]
    return _agreement(names, device, lambda executor, where: dense_simulation(find(name)(), executor, str(where)))


def _picture_agreement(device: torch.device) -> tuple[str, bool]:
    """Four rounds of a small convolutional network on pictures that are cropped and flipped."""
    names = [one for one in _executors(device) if one != "compiled"]
    return _agreement(names, device, _pictures)


def _agreement(
    executors: list[str], device: torch.device, make: Callable[[str, torch.device], Simulation]
) -> tuple[str, bool]:
    """How far from the CPU's model each executor ends, relative to it, and whether all come close enough."""
    expected = _final(make("sequential", torch.device("cpu")))[0]
    texts, passed = [], True
    for executor in executors:
        w, note = _final(make(executor, device))
        apart = float((w - expected).norm() / expected.norm())
        texts.append(f"{executor} {apart:.0e}{note}")
        passed = passed and apart <= TOLERANCE
    return f"{', '.join(texts)} from the CPU, at most {TOLERANCE:.0e}", passed


def _final(sim: Simulation) -> tuple[Tensor, str]:
    """Return the model after all rounds, on the CPU, and whether its steps could be prepared."""
    for _ in sim:
        pass
    step = sim.executor.step
    note = "" if not isinstance(step, PreparedStep) else f" ({'' if step.works else 'not '}{step.participle})"
    return sim.w.cpu(), note


def _pictures(executor: str, device: torch.device) -> Simulation:
    data = _random_pictures((7, 4, 6), (3, 8, 8))
    client = Client(lr=0.05, epochs=2, batch_size=4, weight_decay=0.01, momentum=0.5)
    return Simulation("cnn", data, find("FedSAM")(), client, 4, executor=executor, dtype=torch.float64, device=device,
                      workers=1)  # fmt: skip


def _random_pictures(sizes: tuple[int, ...], shape: tuple[int, ...]) -> FederatedData:
    """Clients with pictures of noise in ten classes, cropped and flipped in training, from a fixed seed."""
    random = torch.Generator().manual_seed(5)
    clients = [(torch.randint(256, (n, *shape), generator=random, dtype=torch.uint8),
                torch.randint(10, (n,), generator=random)) for n in sizes]  # fmt: skip
    return FederatedData.from_clients(clients, classes=10, augment="crop-flip")


def _repeated(device: torch.device) -> tuple[str, bool]:
    """Whether two equal runs have the same bits. Some kernels of GPUs add in any order, which is no error."""
    one, two = (_final(_pictures("sequential", device))[0] for _ in range(2))
    if torch.equal(one, two):
        return "the same bits", True
    return f"other bits, {float((one - two).norm() / one.norm()):.0e} apart", device.type != "cpu"


def _waits(device: torch.device) -> tuple[str, bool]:
    """How often the host waits for a GPU in one round of three clients; torch counts that on CUDA alone."""
    if device.type != "cuda":
        return "counted on a GPU only", True
    counts = []
    for executor in ("sequential", "stacked"):
        sim = dense_simulation(find("FedSMOO")(), executor, str(device))
        sim.round()
        with _counted_waits() as waits:
            sim.round()
        counts.append(f"{executor} {len(waits)}")
    return f"FedSMOO: {', '.join(counts)}", True


@contextmanager
def _counted_waits() -> Iterator[list[warnings.WarningMessage]]:
    """Collect a warning for each time that the host waits for the GPU inside the block."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _speed(device: torch.device, model: str, samples: int, batch: int) -> tuple[str, bool]:
    """Milliseconds of a client's local step of FedAvg and FedSAM, the shortest of several trials."""
    texts = []
    for executor in _executors(device):
        if executor == "compiled":  # convolutions are not worth it
            continue
        times = [_step_time(find(name)(), executor, device, model, samples, batch) for name in ("FedAvg", "FedSAM")]
        if None not in times:
            texts.append(f"{executor} {' and '.join(f'{1000 * time:.1f}' for time in times if time)} ms")
    clock = "of the processor" if device.type == "cpu" else "by the clock"
    return f"{', '.join(texts)} a step of FedAvg and FedSAM, {clock}", True


def _step_time(
    method: Method, executor: str, device: torch.device, model: str, samples: int, batch: int
) -> float | None:
    """Seconds of a client's local step; None if a stack holds one client only."""
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

"""How long a gradient takes on this device, measured by 20 steps and remembered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.model_check import randomness_of
from ..core.objective import Batch, Objective
from ..data.cache import cache_folder
from ..data.sources import source
from ..files import make_folder, read_json, write_atomically
from ..models import build
from ..rounds.device import usable_device
from .environment import device_name
from .estimate import Estimate
from .spec import RunSpec

STEPS = 20
PATIENCE = 20.0  # seconds after which fewer steps must do
LARGEST = 512  # samples of a batch that stands for a full one


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Speed:
    """Seconds on one device."""

    gradient: Seconds  # one minibatch gradient
    evaluation: Seconds  # one sample in evaluation

    def hours(self, work: Estimate) -> float:
        """How long `work` takes, one gradient after another; what the methods do beside gradients is not in it."""
        return (work.gradients * self.gradient + work.evaluated * self.evaluation) / 3600


SPEEDS = TypeAdapter(dict[str, Speed])


def speed(spec: RunSpec, measure: bool = True) -> Speed | None:
    """The speed of `spec` on its device: remembered, else measured; None if it is neither known nor to be measured."""
    device = usable_device(spec.device)
    key = _key(spec, device)
    known = _remembered()
    if key in known:
        return known[key]
    if not measure:
        return None
    measured = _measured(spec, device)
    _remember(known | {key: measured})
    return measured


def _key(spec: RunSpec, device: torch.device) -> str:
    """What the time of a gradient depends on."""
    what = (spec.data.name, spec.data.image_size, spec.model.name, spec.client.batch_size, spec.dtype)
    where = (device_name(device), torch.get_num_threads(), torch.__version__)
    return " ".join(map(str, (*what, *where)))


def _measured(spec: RunSpec, device: torch.device) -> Speed:
    """Medians over gradients, and over evaluations, of a batch of noise of the right shape."""
    module, batch = _noise(spec, device)
    randomness_of(module, batch.x[:2], source(spec.data.name).classes)  # refuses a model that cannot take the data
    objective = Objective(module)
    w = objective.space.flatten(module)
    gradient = _median_seconds(lambda: objective.gradient(w, batch), device)
    with torch.inference_mode(), objective.evaluating():
        evaluation = _median_seconds(lambda: objective.logits(w, batch.x), device)
    return Speed(gradient, evaluation / len(batch.y))


def _noise(spec: RunSpec, device: torch.device) -> tuple[nn.Module, Batch]:
    """The model of `spec` and a batch as large as its clients', of no meaning."""
    known = source(spec.data.name)
    shape, dtype = known.sample_shape(spec.data.image_size), getattr(torch, spec.dtype)
    module = build(spec.model.name, known.classes, shape).to(device, dtype)
    size = min(spec.client.batch_size or LARGEST, LARGEST)
    pixels = torch.randint(0, 256, (size, *shape), device=device)
    x = pixels if known.vocabulary_size else (pixels / 255).to(dtype)
    return module, Batch(x, torch.zeros(size, dtype=torch.int64, device=device))


def _median_seconds(work: Callable[[], Tensor], device: torch.device) -> float:
    """The median time of 20 calls, or of as many as 20 seconds allow, after one that is not counted."""
    seconds: list[float] = []
    began = perf_counter()
    while len(seconds) <= STEPS and (len(seconds) < 2 or perf_counter() - began < PATIENCE):
        started = perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(perf_counter() - started)
    return median(seconds[1:])


def _remembered() -> dict[str, Speed]:
    """The speeds in the user's cache; none if the file is missing or damaged, for it can be measured again."""
    try:
        return SPEEDS.validate_python(read_json(_file()))
    except (InputError, ValidationError):
        return {}


def _remember(known: dict[str, Speed]) -> None:
    """Keep the speeds if that is possible; no command ends because it is not."""
    with suppress(InputError):
        make_folder(_file().parent)
        write_atomically(_file(), lambda path: path.write_bytes(SPEEDS.dump_json(known, indent=2)))


def _file() -> Path:
    return cache_folder() / "speed.json"

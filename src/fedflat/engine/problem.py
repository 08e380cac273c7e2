"""The learning problem of a simulation, and checks of the simulation's arguments and of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from operator import eq
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..adapters import LoRA
from ..core.errors import InputError
from ..core.method import Method
from ..core.model_check import Randomness, check_tokens, randomness_of
from ..core.objective import Objective
from ..core.running_statistics import Buffers
from ..core.structure import layers_of, telling_apart
from ..core.task import SampleLoss, task_of
from ..core.torch_module import WITHOUT_FLOAT64
from ..core.wrapper import label_of
from ..data.federated import FederatedData, digest
from ..rounds.accountant import Privacy
from ..rounds.attack import Attack
from ..rounds.guard import Guard
from ..rounds.local_training import Client
from ..rounds.private_rounds import check_private_settings
from ..rounds.run_model import InitialModel, frozen_hash, statistics_hash
from ..rounds.settings import CLASS, first_difference, table_of

DEFAULT_PARTICIPATION = 1.0
PROCESSES = 4096  # most workers: each takes a third of a gigabyte, and no machine has more cores
BF16 = (
    "gradients in training are bfloat16: what a perturbation changes in them was wrong by 12 % with rho = 0.05 and "
    "by 41 % with rho = 0.01 in a measurement; take single precision for claims about small radii"
)


def check_weights(method: Method, weights: str) -> None:
    """Raise InputError if `method` does not allow `weights` of the clients."""
    if weights not in ("uniform", "samples"):
        raise InputError(f"weights must be 'uniform' or 'samples', got {weights!r}")
    if weights == "samples" and method.needs_equal_weights:
        raise InputError(f"weights = 'samples' does not fit {label_of(method)}, whose derivation needs 'uniform'")


def check_workers(workers: Any) -> None:
    """Raise InputError unless `workers` is a valid number of worker processes."""
    is_integer = isinstance(workers, Integral) and not isinstance(workers, bool)
    if workers != "auto" and not (is_integer and 1 <= workers <= PROCESSES):
        raise InputError(f"workers must be 'auto' or a whole number in [1, {PROCESSES}], got {workers!r}")


def check_ranks(number: int, workers: Any, probes: Sequence[Any], method: Method) -> None:
    """Raise InputError for settings that several ranks do not support."""
    if number > 1 and method.training == "local":
        raise InputError(f"{type(method).__name__} evaluates every client's own model, which one process must have, "
                         f"and there are {number} ranks; use workers")  # fmt: skip
    if number > 1 and workers not in ("auto", 1):
        raise InputError(f"workers = {workers}: each of {number} ranks trains in one process; set workers = 1, or auto")
    if number > 1 and probes:
        raise InputError(f"probes are taken in one process, and there are {number} ranks; set probes = [], and measure "
                         "checkpoints with `fedflat flatness`")  # fmt: skip


def check_arguments(
    method: Method,
    data: FederatedData,
    client: Client | None,
    weights: str,
    precision: str,
    workers: Any,
    **counts: int | None,
) -> None:
    """Raise InputError, naming the argument, for a wrong type or a value out of range.

    counts: arguments that must be positive integers, or None; seed and store_budget may be 0.
    """
    kinds = {"method": (method, Method, "a method such as fedflat.methods.FedAvg()"),
             "data": (data, FederatedData, "FederatedData"),
             "client": (client or Client(), Client, "Client(...)")}  # fmt: skip
    for name, (value, kind, words) in kinds.items():
        if not isinstance(value, kind):
            raise InputError(f"{name} must be {words}, got {value!r}")
    for name, count in counts.items():
        least = 0 if name in ("seed", "store_budget") else 1
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral) or count < least):
            raise InputError(f"{name} must be a whole number of at least {least}, got {count!r}")
    check_weights(method, weights)
    check_workers(workers)
    if precision not in ("fp32", "bf16"):
        raise InputError(f"precision = {precision!r} is unknown; known are fp32, bf16")


def check_privacy(
    privacy: Any, participation: Any, weights: str, adapter: LoRA | None, screening: Guard | Attack | None
) -> None:
    """Raise InputError, naming the setting, for settings that a private run cannot have."""
    if not isinstance(privacy, Privacy):
        raise InputError(f"privacy must be fedflat.Privacy(...), got {privacy!r}")
    check_private_settings(weights, adapter is not None and adapter.mode == "alternate", screening is not None)
    if participation != DEFAULT_PARTICIPATION:
        raise InputError(f"participation = {participation!r} does not go with privacy, whose clients take part "
                         "independently with the chance privacy.rate; leave participation out")  # fmt: skip


def check_same_settings(before: Mapping[str, Any], now: Mapping[str, Any], path: Path, label: str) -> None:
    """Raise InputError, naming the first difference, unless the checkpoint `path` has the current settings.

    before: the settings in the checkpoint. now: the current settings. label: the label of the method.
    """
    difference = first_difference(before, now, eq)
    if difference is None:
        return
    name, then, value = difference
    if name == "rounds":
        raise InputError(f"checkpoint {path}: {label} depends on the number of rounds, which was {then} and is {value}")
    if name == "layers" and isinstance(then, str):
        then, value = telling_apart([then, value])
        raise InputError(f"checkpoint {path}: the model is another one: it had {then}, now it has {value}")
    raise InputError(f"checkpoint {path}: {name} was {then}, now it is {value}")


def _on_device(module: nn.Module, device: torch.device) -> nn.Module:
    """Move a module. Raises InputError for one in double precision if the device has none."""
    if device.type in WITHOUT_FLOAT64 and any(p.dtype == torch.float64 for p in module.parameters()):
        raise InputError(f"dtype: device = '{device}' has no float64; set dtype = 'float32'")
    return module.to(device)


CHECKED_SAMPLES = 4  # samples on which the model is tried before training


class Problem:
    """The model, the loss and the data of a simulation, checked to fit each other."""

    def __init__(
        self, initial: InitialModel, loss: str | SampleLoss | None, data: FederatedData, device: torch.device,
        is_bfloat16: bool, buffers: Buffers | None = None,
    ) -> None:  # fmt: skip
        """Build the initial model on `device` and move the data there.

        is_bfloat16: whether training gradients are computed in bfloat16 autocast. buffers: how running statistics are
        treated. Raises InputError, naming the
        argument, if model, loss and data do not fit each other, or if the model cannot be trained.
        """
        if initial.model == "transformer" and "path" in initial.options and data.vocabulary:
            raise InputError(
                "model 'transformer' has a tokenizer of its own, and the data have numbers of words; load them with "
                "tokenizer=FOLDER, e.g. fedflat.data.load('ag-news', 20, tokenizer=FOLDER)"
            )
        module = _on_device(initial.module(), device)
        is_partly_frozen = not all(p.requires_grad for p in module.parameters())
        self._base_hash = frozen_hash(module) if is_partly_frozen else None
        self.task = task_of(loss, data.task)
        if not self.task.form.has_accuracy and data.validation is not None:
            raise InputError(
                f"validation samples measure accuracy, which {self.task.kind} does not have; set validation = 0"
            )
        self.objective = Objective(module, bf16=is_bfloat16, task=self.task, buffers=buffers)
        self.layers = layers_of(module)
        w = self.initial_parameters()
        self.data, self._dtype = data.to(device, w.dtype), w.dtype
        self._buffers = buffers, None if buffers is None else statistics_hash(module)
        self._data_hash, self._model_hash = self.data.contents_hash(), digest([self.objective.space.row_major(w)])
        self.randomness = self._tried(w)

    def initial_parameters(self) -> Tensor:
        """Return a new copy of the parameters before round 0, (d,)."""
        return self.objective.space.flatten(self.objective.module)

    def _tried(self, w: Tensor) -> Randomness:
        """Try the model at `w` (d,) on a few samples, and return how it uses random numbers."""
        module, data = self.objective.module, self.data
        check_tokens(module, data.x, *(data.test or ())[:1])
        samples = data.inputs(torch.arange(min(CHECKED_SAMPLES, len(data.y)), device=data.y.device))
        randomness = randomness_of(module, samples, data.classes, self.task)
        self.task.check(data.classes, data.y[:2], w.dtype)
        self.objective.check_own_modes(w, samples)
        return randomness

    def settings(self) -> dict[str, Any]:
        """Return the settings of data and model, with the hashes of their contents."""
        scheme = self.data.partition
        return {
            "data": {
                "name": self.data.name,
                "clients": self.data.clients,
                "partition": scheme if isinstance(scheme, str) else table_of(scheme),
            },
            "partition_hash": self.data.partition_hash(),
            "data_hash": self._data_hash,
            "model_hash": self._model_hash,
            "base_hash": self._base_hash,
            "buffers": self._buffers[0],
            "buffers_hash": self._buffers[1],
            "model": {
                CLASS: type(self.objective.module).__name__,
                "parameters": self.objective.space.d,
                "dtype": str(self._dtype).removeprefix("torch."),
            },
        }

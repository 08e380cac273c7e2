"""The learning problem of a simulation: a model, its loss and the clients' samples, on one device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.model_check import Randomness, check_tokens, randomness_of
from ..core.objective import Objective
from ..core.structure import layers_of
from ..core.task import SampleLoss
from ..data.federated import FederatedData, digest
from ..rounds.run_model import InitialModel, frozen_hash
from ..rounds.settings import CLASS, table_of
from .arguments import check_task

CHECKED_SAMPLES = 4  # samples on which the model is tried before training


class Problem:
    """The model, the loss and the data of a simulation, checked to fit each other."""

    def __init__(
        self, initial: InitialModel, loss: str | SampleLoss | None, data: FederatedData, device: torch.device,
        is_bfloat16: bool,
    ) -> None:  # fmt: skip
        """Build the initial model on `device` and move the data there.

        is_bfloat16: whether training gradients are computed in bfloat16 autocast. Raises InputError, naming the
        argument, if model, loss and data do not fit each other, or if the model cannot be trained.
        """
        module = initial.module().to(device)
        is_partly_frozen = not all(p.requires_grad for p in module.parameters())
        self._base_hash = frozen_hash(module) if is_partly_frozen else None
        self.task = check_task(loss, data)
        self.objective = Objective(module, bf16=is_bfloat16, task=self.task)
        self.layers = layers_of(module)
        w = self.initial_parameters()
        self.data, self._dtype = data.to(device, w.dtype), w.dtype
        self._data_hash, self._model_hash = self.data.contents_hash(), digest([self.objective.space.row_major(w)])
        self.randomness = self._tried(w)

    def initial_parameters(self) -> Tensor:
        """Return the parameters before round 0, (d,), in new memory: they are not kept."""
        return self.objective.space.flatten(self.objective.module)

    def _tried(self, w: Tensor) -> Randomness:
        """Try the model at `w` (d,) on a few samples, and return how it uses random numbers."""
        module, data = self.objective.module, self.data
        check_tokens(module, data.x, *(data.test or ())[:1])
        samples = data.inputs(torch.arange(min(CHECKED_SAMPLES, len(data.y)), device=w.device))
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
            "model": {
                CLASS: type(self.objective.module).__name__,
                "parameters": self.objective.space.d,
                "dtype": str(self._dtype).removeprefix("torch."),
            },
        }

"""FedAvg and FedSAM as they are written in plain PyTorch, without any framework."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .workloads import Workload


class BareLoop:
    """One module for all clients, weights loaded for each, torch.optim.SGD, the plain mean at the end.

    Leaner than most loops that are written: samples lie ready in memory, and the optimiser, which has no state, is
    made once and uses torch's fused update.
    """

    def __init__(self, work: Workload, channels_last: bool, device: str = "cpu", rho: float = 0.0) -> None:
        """Lay pictures and filters out in torch's order for convolutions if `channels_last`; all of it on `device`.

        rho: the radius of SAM's perturbation; 0 takes one gradient for each step.
        """
        self._work, self._rho, data = work, rho, work.data()
        self._members = torch.split(torch.from_numpy(data.held(slice(None))).to(device), work.samples)
        layout = torch.channels_last if channels_last and data.x.ndim == 4 else torch.contiguous_format
        self.module = work.module().to(device, memory_format=layout)  # type: ignore[call-overload]
        self._x, self._y = data.x.to(device).contiguous(memory_format=layout), data.y.to(device)
        self._optimizer = torch.optim.SGD(self.module.parameters(), lr=work.client().lr, fused=True)
        self._random = np.random.default_rng(0)

    def round(self, clients: int) -> None:
        """Draw `clients` clients, train them one after another, load the mean of their models."""
        start = {name: value.clone() for name, value in self.module.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for client in self._random.choice(len(self._members), clients, replace=False):
            self.module.load_state_dict(start)
            self._train(self._members[client])
            for name, value in self.module.state_dict().items():
                total[name] += value
        self.module.load_state_dict({name: value / clients for name, value in total.items()})

    def backprop(self) -> None:
        """Compute loss and gradient of one batch, and drop them."""
        self._gradient(self._members[0][: self._work.batch])

    def _train(self, mine: Tensor) -> None:
        steps = 0
        while steps < self._work.steps:
            shuffled = mine[torch.randperm(len(mine), device=mine.device)]
            for samples in torch.split(shuffled, self._work.batch)[: self._work.steps - steps]:
                self._gradient(samples)
                if self._rho:
                    self._gradient_of_sam(samples)
                self._optimizer.step()
                steps += 1

    @torch.no_grad()
    def _gradient_of_sam(self, samples: Tensor) -> None:
        """Replace the gradient by that of the perturbed model, on the same samples."""
        parameters = list(self.module.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        before = [p.clone() for p in parameters]
        scale = self._rho / torch.nn.utils.get_total_norm(gradients)
        torch._foreach_add_(parameters, torch._foreach_mul(gradients, scale))
        with torch.enable_grad():
            self._gradient(samples)
        torch._foreach_copy_(parameters, before)

    def _gradient(self, samples: Tensor) -> None:
        self._optimizer.zero_grad()
        cross_entropy(self.module(self._x[samples]), self._y[samples]).backward()  # type: ignore[no-untyped-call]

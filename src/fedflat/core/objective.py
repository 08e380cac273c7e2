"""The task loss of a model as a function of its flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy

from .errors import InputError
from .space import Space


@dataclass(frozen=True)
class Batch:
    """Samples for one client, or one batch for each client of a stack."""

    x: Tensor  # (*clients, b, *shape)
    y: Tensor  # (*clients, b) class indices
    weight: Tensor | None = None  # (*clients, b), sums to 1 per client; None is the plain mean


class Objective:
    """Mean cross-entropy of `module` at any parameter vector; the module's own parameters are not used.

    Weight decay and any penalty are not part of it. Gradients are taken in training mode; layers that
    are in evaluation mode inside a module in training mode stay so.
    """

    def __init__(self, module: nn.Module) -> None:
        """Raises ValueError if the module keeps batch statistics, which a federated mean cannot average."""
        refuse_batch_statistics(module)
        if not module.training:
            module.train()
        self.module = module
        self.space = Space(module)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Class scores (*clients, b, classes) at `w` (*clients, d) for `x` (*clients, b, *shape)."""
        parameters = self.space.views(w)
        if w.ndim == 1:
            scores: Tensor = functional_call(self.module, parameters, (x,))
        else:
            scores = vmap(lambda p, one: functional_call(self.module, p, (one,)))(parameters, x)
        return scores

    def loss(self, w: Tensor, batch: Batch) -> Tensor:
        """Mean loss per client, (*clients,), at `w` (*clients, d)."""
        scores = self.logits(w, batch.x)
        each = cross_entropy(scores.flatten(0, -2), batch.y.flatten(), reduction="none").view(batch.y.shape)
        return each.mean(-1) if batch.weight is None else (each * batch.weight).sum(-1)

    def gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """Gradient of the mean loss, (*clients, d), each client at its own row of `w` (*clients, d)."""
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            total = self.loss(w, batch).sum()
        gradient: Tensor = torch.autograd.grad(total, w)[0]
        return gradient

    def at(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """The gradient oracle of one batch."""
        return lambda w: self.gradient(w, batch)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Every layer in evaluation mode inside the block, and in its own mode again after it."""
        modes = [(layer, layer.training) for layer in self.module.modules()]
        self.module.eval()
        try:
            yield
        finally:
            for layer, training in modes:
                layer.training = training


def refuse_batch_statistics(module: nn.Module) -> None:
    """Raise ValueError naming the first layer that keeps running statistics of batches."""
    for name, layer in module.named_modules():
        if getattr(layer, "track_running_stats", False) or isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"model: layer {name or 'itself'!s} is {type(layer).__name__}, whose batch statistics differ between "
                "clients and cannot be averaged like parameters; replace it with GroupNorm, e.g. "
                f"torch.nn.GroupNorm(2, {getattr(layer, 'num_features', 'channels')})"
            )

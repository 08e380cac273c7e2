"""Whether torch computes the gradients of several clients at once as those of each alone: it has mistakes there."""

from __future__ import annotations

import torch
from torch import nn

from ...core.errors import StackingError
from ...core.hidden_state import close
from ...core.model_check import Randomness
from ...core.objective import Batch, Objective
from ...rounds.executor import Executor

SAMPLES = 4


def check_stack(one: Executor) -> None:
    """Raise StackingError if a stack of two clients has other gradients than each of them, or none."""
    objective, data = one.objective, one.batches.data
    for layer in objective.module.modules():
        has_padding = getattr(layer, "padding_idx", None) is not None and not isinstance(layer, nn.Embedding)
        if has_padding and any(p.requires_grad for p in layer.parameters(False)):
            raise StackingError(
                f"model: in a stack, torch trains the padding of {type(layer).__name__}; set executor = 'sequential'"
            )
    some = torch.arange(min(SAMPLES, len(data.y)), device=data.y.device)
    x, y = (torch.stack([part, part.flip(0)]) for part in (data.inputs(some), data.y[some]))
    keys = torch.arange(2, device=some.device) if one.randomness is Randomness.DROPOUT else None
    w = objective.space.flatten(objective.module)
    points = torch.stack([w, w * 1.01 + 0.001])
    together = _gradient(objective, points, Batch(x, y, key=keys))
    for i, gradient in enumerate(together):
        alone = _gradient(objective, points[i], Batch(x[i], y[i], key=None if keys is None else keys[i]))
        if not _close(gradient, alone, objective):
            raise StackingError(
                "model: torch gives other gradients for several clients at once; set executor = 'sequential'"
            )


def _gradient(objective: Objective, w: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Compute what `Objective.gradient` does, in the precision of the model."""
    w = w.detach().requires_grad_()
    with torch.enable_grad():
        gradient: torch.Tensor = torch.autograd.grad(objective.loss(w, batch).sum(), w)[0]
    return gradient


def _close(a: torch.Tensor, b: torch.Tensor, objective: Objective) -> bool:
    """Tell whether two gradients agree but for rounding, which is that of the coarsest parameters."""
    floating = [p.dtype for p in objective.module.parameters() if p.is_floating_point()]
    return close(a, b, max(torch.finfo(dtype).eps for dtype in floating) ** 0.4)

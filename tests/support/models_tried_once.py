"""Tries of models that most tests share: the same small network of torch's own layers is tried once in a process.

A try takes 20 ms, and thousands of simulations are made. Every other model is tried as users' are: one with a layer
that is not listed, a hook, a parameter that shares memory, has a view or is not finite, and every other task.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from fedflat.core.model_check import Randomness, randomness_of
from fedflat.core.task import CROSS_ENTROPY, Task

LAYERS = (nn.Sequential, nn.Linear, nn.Conv2d, nn.GroupNorm, nn.Tanh, nn.ReLU, nn.MaxPool2d, nn.Flatten, nn.Dropout)
HOOKS = [name for name in vars(nn.Module()) if name.endswith(("_hooks", "_hooks_with_kwargs"))]
GLOBAL_HOOKS = [name for name in vars(nn.modules.module) if name.startswith("_global_") and name.endswith("_hooks")]


def tried_once() -> Callable[..., Randomness]:
    """Return `randomness_of`, which remembers what it has found."""
    known: dict[Hashable, Randomness] = {}

    def found(module: nn.Module, x: Tensor, classes: int, task: Task = CROSS_ENTROPY) -> Randomness:
        if task is not CROSS_ENTROPY or not is_usual(module, x):
            return randomness_of(module, x, classes, task)
        shapes = [(name, p.shape, p.dtype, p.requires_grad) for name, p in module.named_parameters()]
        key = (repr(module), *shapes, *((part.training) for part in module.modules()), x.shape, x.dtype, classes)
        if key not in known:
            known[key] = randomness_of(module, x, classes, task)
        return known[key]

    return found


def is_usual(module: nn.Module, x: Tensor) -> bool:
    """Tell whether nothing of a module is unusual, so that another one with the same layers behaves as it does."""
    plain = vars(nn.Module()).keys()
    parts, parameters = list(module.modules()), list(module.parameters())
    return (
        x.device.type == "cpu"
        and x.is_floating_point()
        and not any(getattr(nn.modules.module, name) for name in GLOBAL_HOOKS)
        and all(type(part) in LAYERS and _has_usual_state(part, plain) for part in parts)
        and all(_is_usual_parameter(p) for p in parameters)
        and len({p.untyped_storage().data_ptr() for p in parameters}) == len(parameters)
    )


def _has_usual_state(part: nn.Module, plain: Any) -> bool:
    own = [value for name, value in vars(part).items() if name not in plain]
    return not any(getattr(part, name) for name in HOOKS) and not part._buffers and not any(map(callable, own))


def _is_usual_parameter(p: nn.Parameter) -> bool:
    has_hooks = p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None)
    return type(p) is nn.Parameter and not has_hooks and p.is_contiguous() and bool(torch.isfinite(p).all())

"""A frozen base in bfloat16, under adapters and a head in the precision of the run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .adapted import is_factor


def with_bfloat16_base(module: nn.Module) -> nn.Module:
    """`module`, whose frozen parameters are now in bfloat16; it is changed.

    Every layer is given its inputs in the precision of its own parameters, and the scores are in the one of the head
    or the adapters, which with a fixed A keep theirs.
    """
    trained = next(p.dtype for p in module.parameters() if p.requires_grad)
    for name, p in module.named_parameters():
        if not p.requires_grad and not is_factor(name, "A") and p.is_floating_point():
            p.data = p.data.bfloat16()
    for layer in module.modules():
        if any(p.is_floating_point() for p in layer.parameters(recurse=False)):
            layer.register_forward_pre_hook(_in_own_precision, with_kwargs=True)
    module.register_forward_hook(_Scores(trained))
    return module


def _in_own_precision(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The arguments of a layer in the precision of its parameters."""
    dtype = next(p.dtype for p in layer.parameters(recurse=False) if p.is_floating_point())
    return tuple(_cast(x, dtype) for x in args), {name: _cast(x, dtype) for name, x in kwargs.items()}


class _Scores:
    """Gives the scores of a model in the precision `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """The output, or the first of several, in this precision."""
        if isinstance(output, tuple | list):
            return (_cast(output[0], self.dtype), *output[1:])
        return _cast(output, self.dtype)


def _cast(x: Any, dtype: torch.dtype) -> Any:
    """`x` in another precision, if it is a tensor of real numbers."""
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

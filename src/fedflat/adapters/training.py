"""Training of adapted models: a frozen base in bfloat16, and factors that are trained in alternate rounds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.method import Method
from ..core.space import Space
from ..core.wrapper import ALWAYS, EVEN, ODD, Alternation
from .adapted import is_factor
from .lora import LoRA


def with_bfloat16_base(module: nn.Module) -> nn.Module:
    """Convert the frozen parameters of `module` to bfloat16, in place, except a fixed A; return `module`.

    Every layer gets its inputs in the precision of its own parameters, and the scores have the precision of the
    trained parameters.
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
    """Convert the arguments of a layer to the precision of its parameters."""
    dtype = next(p.dtype for p in layer.parameters(recurse=False) if p.is_floating_point())
    return tuple(_cast(x, dtype) for x in args), {name: _cast(x, dtype) for name, x in kwargs.items()}


class _Scores:
    """A hook that converts the scores of a model to the precision `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Convert the output, or the first of several."""
        if isinstance(output, tuple | list):
            return (_cast(output[0], self.dtype), *output[1:])
        return _cast(output, self.dtype)


def _cast(x: Any, dtype: torch.dtype) -> Any:
    """Convert `x` to another precision if it is a tensor of real numbers."""
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def by_turns(method: Method, adapter: LoRA | None, space: Space, device: torch.device) -> Method:
    """Return `method`; in mode `alternate`, wrapped so that it trains B in even rounds, A in odd ones, the head in all.

    B comes first, because A has no gradient while B is zero. `device` is that of the model. Raises InputError for a
    method that cannot alternate.
    """
    if adapter is None or adapter.mode != "alternate":
        return method
    when = torch.full((space.d,), ALWAYS, dtype=torch.int8, device=device)
    for name, where in space.layers():
        if is_factor(name, "A") or is_factor(name, "B"):
            when[where] = ODD if is_factor(name, "A") else EVEN
    return Alternation.of(method, when)

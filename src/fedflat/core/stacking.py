"""Linear layers of many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class WeightFirst(TorchFunctionMode):
    """Linear layers as (W x^T)^T inside the block.

    The same numbers, but under `vmap` the gradient of a weight then comes out of the product row-major, as the flat
    vector holds it, and not transposed: that saves a copy against the grain, half of the time of a small network.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for every one of its functions."""
        if func is functional.linear and args[0].ndim > 1:
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    out = torch.matmul(weight, input.mT).mT
    return out if bias is None else out + bias

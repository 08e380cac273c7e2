"""Linear layers of many clients at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.functional import linear


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    """The layers that `row_major` may change: torch's linear layers, except those with a `forward` of their own."""
    return [layer for layer in module.modules() if type(layer) is nn.Linear and "forward" not in vars(layer)]


@contextmanager
def row_major(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """Inside the block, `vmap` computes the weight gradients of `layers` in row-major order, as in the flat vector.

    The numbers are the same. But torch's own product gives the gradients transposed, and copying them into the flat
    vector takes half of the time of a small network. Computing (W x^T)^T gives row-major gradients. So does a product
    with a gradient of our own, which is twice as fast forwards but slower in Python: it is used in compiled steps.
    """
    for layer in layers:
        layer.forward = partial(_linear, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _linear(layer: nn.Linear, input: Tensor) -> Tensor:
    weight, bias = layer.weight, layer.bias
    if input.ndim == 1:
        return linear(input, weight, bias)
    if get_proxy_mode() is None:
        out = torch.matmul(weight, input.mT).mT
    elif not weight.requires_grad:  # frozen, so it is the same for all clients and has no gradient
        return linear(input, weight, bias)
    else:
        out = _Product.apply(input.flatten(0, -2), weight).unflatten(0, input.shape[:-1])  # type: ignore[no-untyped-call]
    return out if bias is None else out + bias


class _Product(torch.autograd.Function):
    """x W^T for x (*clients, b, inputs) and W (*clients, outputs, inputs); the gradient of W is the product g^T x."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return torch.matmul(x, weight.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        return torch.matmul(g, weight) if ctx.needs_input_grad[0] else None, torch.matmul(g.mT, x)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], *inputs: Tensor) -> tuple[Tensor, int]:
        """Put the client axis first; an input without one is the same for all clients."""
        stacked = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(inputs, in_dims, strict=True)
        )
        return _Product.apply(*stacked), 0  # type: ignore[no-untyped-call]

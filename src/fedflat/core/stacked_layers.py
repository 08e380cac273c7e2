"""Dropout, linear layers and embeddings that give a client the same results in a stack of clients as alone.

Dropout masks depend only on a key. torch's masks depend on its random state, and `vmap` cannot keep one random state
for each client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional
from torch.nn.functional import embedding, linear
from torch.overrides import TorchFunctionMode

from .errors import StackingError

_ELEMENTS = (functional.dropout, torch.dropout, torch.dropout_)
# Dropout of entire channels, for batches with this many axes; the three functions read other shapes differently.
_CHANNELS = {functional.dropout1d: 3, functional.dropout2d: 4, functional.dropout3d: 5}
_COVERED: tuple[Callable[..., Any], ...] = (*_ELEMENTS, *_CHANNELS)


class SeededDropout(TorchFunctionMode):
    """Mode in which dropout takes its masks from `key` instead of torch's random state.

    `key` is an int64 tensor () on the model's device; inside `vmap` it may be batched, unlike torch's
    own generators. A mask depends on the key, on the number of earlier dropouts in the block, and on the coordinates
    of each element, but not on the sizes of the axes: a short batch has the same masks alone and padded in a stack.
    Dropout of elements and of channels is covered if Python code calls it. Random numbers that torch draws inside an
    operator (attention, recurrent layers, noise) still change torch's random state.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self._key = key
        self.calls = 0  # dropouts in this block so far

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, with seeded masks if it is a dropout; torch calls this for each of its functions."""
        kwargs = kwargs or {}
        call = _DropoutCall.of(func, args, kwargs) if func in _COVERED else None
        shape = None if call is None else call.mask_shape(func)
        if call is None or shape is None:
            return func(*args, **kwargs)
        keep = kept(self._key, self.calls, shape, call.p)
        self.calls += 1
        scale = keep.to(call.input.dtype).div_(1 - call.p)
        return call.input.mul_(scale) if call.inplace else call.input * scale


@dataclass(frozen=True)
class _DropoutCall:
    """The arguments of a dropout function, by their names in `torch.nn.functional`."""

    input: Tensor
    p: float = 0.5
    training: bool = True
    inplace: bool = False

    @classmethod
    def of(cls, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _DropoutCall:
        named = {"training" if name == "train" else name: value for name, value in kwargs.items()}
        if func is torch.dropout_:
            named["inplace"] = True
        return cls(*args, **named)

    def mask_shape(self, func: Callable[..., Any]) -> tuple[int, ...] | None:
        """Return the shape of the mask; None if there is no mask, or if torch has to interpret the input's shape."""
        if not (self.training and 0 < self.p < 1):
            return None
        shape = tuple(self.input.shape)
        if func in _ELEMENTS:
            return shape
        return (*shape[:2], *(1 for _ in shape[2:])) if _CHANNELS[func] == len(shape) else None


def kept(key: Tensor, call: int, shape: tuple[int, ...], p: float) -> Tensor:
    """Draw the elements that dropout keeps, bool of `shape`: each with probability 1 - p, 0 < p < 1.

    The random bits come from SplitMix64's finaliser, chained over (key, call, coordinates) as in
    `rounds.randomness.words`.
    """
    state = _mix(key ^ _mix(torch.full_like(key, call)))
    for length in shape:
        state = _mix(state[..., None] ^ _mix(torch.arange(length, device=key.device)))
    return torch.ge(state, int(p * 2**64) - 2**63)  # the words are uniform from -2^63


def _mix(x: Tensor) -> Tensor:
    """Change 64-bit words in place by a bijection in which every input bit affects every output bit.

    A product of int64 is taken modulo 2^64. The words are changed in place, because a new tensor for each operation
    takes up to four times as long.
    """
    x += _signed(0x9E3779B97F4A7C15)
    x ^= _shifted(x, 30)
    x *= _signed(0xBF58476D1CE4E5B9)
    x ^= _shifted(x, 27)
    x *= _signed(0x94D049BB133111EB)
    x ^= _shifted(x, 31)
    return x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift `x` right by `bits`, filled with zeros: torch's own shift repeats the sign bit."""
    return (x >> bits).bitwise_and_(2 ** (64 - bits) - 1)


def _signed(word: int) -> int:
    """Return the int64 with the bits of `word`."""
    return word - 2**64 if word >= 2**63 else word


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    """Return the layers that `row_major` may change: torch's linear layers whose own `forward` is unchanged."""
    return [layer for layer in module.modules() if type(layer) is nn.Linear and "forward" not in vars(layer)]


@contextmanager
def row_major(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """Make `vmap` compute the weight gradients of `layers` in row-major order, as in the flat vector.

    The gradients have the same values. But torch's own product gives them transposed, and copying transposed gradients
    into the flat vector takes half of the time of a small network. Computing the product as (W x^T)^T gives row-major
    gradients. Compiled steps use an operator with a custom gradient (`_Product`) instead: its gradients are row-major,
    too, and its forward pass is twice as fast. Outside compiled steps, calling this operator from Python is slower.
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
    elif not is_batchedtensor(weight):  # frozen, so it is the same for all clients and has no gradient
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
        """Put the client axis first; an input without a client axis is the same for all clients."""
        stacked = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(inputs, in_dims, strict=True)
        )
        return _Product.apply(*stacked), 0  # type: ignore[no-untyped-call]


ARGUMENTS = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")


def has_special_gradient(module: nn.Module) -> bool:
    """Tell whether an embedding of `module` has an option for its gradient that `vmap` would ignore."""
    return any(
        getattr(layer, "padding_idx", None) is not None or getattr(layer, "scale_grad_by_freq", False)
        for layer in module.modules()
    )


class EmbeddingGradients(TorchFunctionMode):
    """Mode in which embeddings have the same gradient inside and outside `vmap`, whose rule ignores two options.

    The row of `padding_idx` has no gradient; `scale_grad_by_freq`, which counts the tokens of one client's batch,
    raises StackingError.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and correct the gradient of an embedding; torch calls this for each of its functions."""
        out = func(*args, **(kwargs or {}))
        if func is not embedding:
            return out
        given = dict(zip(ARGUMENTS, args, strict=False)) | (kwargs or {})
        if given.get("scale_grad_by_freq"):
            raise StackingError(
                "model: an embedding with scale_grad_by_freq cannot be run for several clients at once; set executor = "
                "'sequential'"
            )
        if given.get("padding_idx") is None:
            return out
        padding = given["input"] == given["padding_idx"] % len(given["weight"])
        return torch.where(padding[..., None], out.detach(), out)

"""Dropout with masks that depend on a key only: the same for a client alone, in a stack, and at every gradient.

torch's own masks depend on its random state, which `vmap` cannot keep for each client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_ELEMENTS = (functional.dropout, torch.dropout, torch.dropout_)
# Dropout of whole channels, for batches with this many axes; the three functions read other shapes differently.
_CHANNELS = {functional.dropout1d: 3, functional.dropout2d: 4, functional.dropout3d: 5}
_COVERED: tuple[Callable[..., Any], ...] = (*_ELEMENTS, *_CHANNELS)


class SeededDropout(TorchFunctionMode):
    """Inside the block, dropout takes its masks from `key` instead of torch's random state.

    `key` is a whole number, an int64 tensor () on the model's device; inside `vmap` it may be batched, unlike torch's
    own generators. A mask depends on the key, on the number of earlier dropouts in the block, and on the coordinates
    of each element, but not on the sizes of the axes: a short batch has the same masks alone and padded in a stack.
    This covers dropout of elements and of channels that Python calls. Random numbers that torch draws inside an
    operator (attention, recurrent layers, noise) still change torch's random state.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self._key = key
        self.calls = 0  # dropouts in this block so far

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for each of its functions."""
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
        """The shape of the mask; None if there is no mask, or if torch has to interpret the input's shape."""
        if not (self.training and 0 < self.p < 1):
            return None
        shape = tuple(self.input.shape)
        if func in _ELEMENTS:
            return shape
        return (*shape[:2], *(1 for _ in shape[2:])) if _CHANNELS[func] == len(shape) else None


def kept(key: Tensor, call: int, shape: tuple[int, ...], p: float) -> Tensor:
    """The elements that dropout keeps, bool of `shape`: each with probability 1 - p, 0 < p < 1.

    SplitMix64's finaliser chained over (key, call, coordinates), as in `rounds.randomness.words`.
    """
    state = _mix(key ^ _mix(torch.full_like(key, call)))
    for length in shape:
        state = _mix(state[..., None] ^ _mix(torch.arange(length, device=key.device)))
    return torch.ge(state, int(p * 2**64) - 2**63)  # the words are uniform from -2^63


def _mix(x: Tensor) -> Tensor:
    """Change 64-bit words in place by a bijection in which every input bit moves every output bit.

    int64 multiplies modulo 2^64. A mask is as large as what is masked: with a new tensor for each operation it takes
    up to four times as long.
    """
    x += _signed(0x9E3779B97F4A7C15)
    x ^= _shifted(x, 30)
    x *= _signed(0xBF58476D1CE4E5B9)
    x ^= _shifted(x, 27)
    x *= _signed(0x94D049BB133111EB)
    x ^= _shifted(x, 31)
    return x


def _shifted(x: Tensor, bits: int) -> Tensor:
    """`x` shifted right by `bits`, filled with zeros: torch's own shift repeats the sign bit."""
    return (x >> bits).bitwise_and_(2 ** (64 - bits) - 1)


def _signed(word: int) -> int:
    """The int64 with the bits of `word`."""
    return word - 2**64 if word >= 2**63 else word

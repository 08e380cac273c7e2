"""Compression of the vectors that clients send: the largest entries of each, or a few bits for every entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .errors import InputError
from .hyper import by_name, check, hyper

INDEX_BYTES = 4  # of the place of an entry
Uniform = Callable[[Tensor], Tensor]  # returns random numbers in [0, 1) of the shape of its argument


@by_name
@dataclass(frozen=True, kw_only=True)
class Compression:
    """What a client sends of each vector v of its message, as a whole.

    top-k (Stich et al., NeurIPS 2018): the k = max(1, round(share d)) of its d entries with the largest magnitudes; of
    equal ones, those that stand first. All others are 0.

    quantise (QSGD, Alistarh et al., NeurIPS 2017, with the largest magnitude s as the norm): every entry is rounded to
    a multiple of s / L with L = 2^(bits - 1) - 1, up or down at random, so that its mean is the entry.

    With error feedback (Karimireddy et al., ICML 2019) a client adds to the next v what it did not send of this one.
    """

    kind: Literal["top-k", "quantise"] = hyper("top-k", "what is sent of each vector, see docs/howto/compression.md")
    share: float | None = hyper(None, "top-k: share of the entries that are sent", low=0, high=1, open_low=True)
    bits: int | None = hyper(None, "quantise: bits for each entry", low=2, high=16)
    error_feedback: bool = hyper(True, "whether clients keep what they did not send, and add it to what they send next")

    def __post_init__(self) -> None:
        """Raise InputError, naming the field, for a value that is out of range, not used, or missing."""
        check(self, "compress")
        needed, other = ("share", "bits") if self.kind == "top-k" else ("bits", "share")
        if getattr(self, needed) is None:
            raise InputError(f"compress.kind = {self.kind!r} needs compress.{needed}")
        if getattr(self, other) is not None:
            raise InputError(f"compress.{other} = {getattr(self, other)} is not used by compress.kind = {self.kind!r}; "
                             "leave it out")  # fmt: skip
        if self.bits == 2 and self.error_feedback:
            # One level: what is not sent can be as large as the vector, so the kept errors would grow without bound.
            raise InputError("compress.bits = 2 does not go with compress.error_feedback, whose errors would grow from "
                             "round to round; take bits = 3 or more, or error_feedback = false")  # fmt: skip

    @property
    def levels(self) -> int:
        """L: the number of positive values that an entry can have, in units of a quantised vector's step."""
        assert self.bits is not None  # noqa: S101 (for the type checker)
        return (1 << (self.bits - 1)) - 1

    def kept(self, width: int) -> int:
        """Return k: how many of `width` entries are sent."""
        assert self.share is not None  # noqa: S101 (for the type checker)
        return max(1, round(self.share * width))

    def has_bitmap(self, width: int) -> bool:
        """Tell whether a bit for every entry says which ones are sent, because a list of their places is longer."""
        return -(-width // 8) < INDEX_BYTES * self.kept(width)

    def bytes_of(self, width: int, number_bytes: int) -> int:
        """Return the bytes that a vector of `width` entries takes in a message; `number_bytes` is the size of a number.

        top-k: the k numbers and their places. quantise: s, and for every bit of an entry a plane of all entries' bits.
        """
        plane = -(-width // 8)
        if self.bits is not None:
            return number_bytes + self.bits * plane
        k = self.kept(width)
        return number_bytes * k + (plane if self.has_bitmap(width) else INDEX_BYTES * k)

    def compressed(self, x: Tensor, uniform: Uniform) -> Tensor:
        """Return what is sent of the vectors `x` (*clients, width), which must be finite."""
        if self.kind == "top-k":
            return torch.where(self.largest(x), x, 0.0)
        size, scale = x.abs(), x.abs().amax(-1, keepdim=True)
        multiples = self.levels * (size / scale).nan_to_num(0.0)  # 0 / 0 in a vector of zeros
        lower = multiples.floor()
        rounded = x.sign() * (lower + (uniform(x) < multiples - lower))
        return self.from_levels(rounded + 0.0, scale)  # + 0.0: a message has no -0.0

    def largest(self, x: Tensor) -> Tensor:
        """Return the mask of the k entries of `x` (*clients, width) with the largest magnitudes, bool."""
        size, k = x.abs(), self.kept(x.shape[-1])
        least = size.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        above, equal = size > least, size == least
        return above | (equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True)))

    def to_levels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the multiples of s / L in quantised vectors `x` (*clients, width), and s (*clients, 1)."""
        scale = x.abs().amax(-1, keepdim=True)
        return (self.levels * (x / scale).nan_to_num(0.0)).round(), scale

    def from_levels(self, multiples: Tensor, scale: Tensor) -> Tensor:
        """Return the vectors with these `multiples` (*clients, width) of s / L; `scale` is s (*clients, 1).

        L / L is 1 on every device, so the largest magnitude is s, bit for bit.
        """
        levels = scale.new_full((1,), self.levels)  # a tensor: a GPU multiplies by the rounded inverse of a number
        return scale * (multiples / levels)

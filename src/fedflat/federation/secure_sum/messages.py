"""The messages of a secure sum: a request to each client and its reply, for each of the four steps.

A client's summand has the integers of an `ExactSum` for each field of its record, and for the client's figures
(metrics).

The names of fields are sent over the network, so renaming a field changes the protocol. Clients are listed by their
numbers in the federation, always in ascending order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.method import Method
from ...rounds.aggregation import RunningMean
from ...rounds.exact_sum import ExactSum, Grid, grid_of
from ..messages import PackedTensor, RefusedError, TrainRequest, quoted
from .keys import WORD, Words


@dataclass(frozen=True, kw_only=True)
class KeysRequest(TrainRequest):
    """Step 1: train, store the result, and send public keys."""

    session: str  # name of this attempt at the sum
    weight: float  # of the client in the mean


@dataclass(frozen=True)
class KeysReply:
    """The reply to step 1: the public keys of a client that has trained."""

    t: int
    samples: int  # that the client holds
    steps: int  # local steps that it took
    channel_key: bytes  # X25519, for its messages to other clients
    mask_key: bytes  # X25519, for the masks that it shares with other clients
    seed_digest: bytes  # SHA-256 of the seed of its own mask
    places: tuple[int, ...]  # the highest place of each of its sums, see `ExactSum`
    unmasked: tuple[int, ...]  # survivors for whom it disclosed shares in an earlier attempt at this round


@dataclass(frozen=True)
class SharesRequest:
    """Step 2: split the secrets into shares for these clients."""

    t: int
    federation: str
    session: str
    participants: tuple[int, ...]
    channel_keys: tuple[bytes, ...]
    mask_keys: tuple[bytes, ...]
    places: tuple[int, ...]  # for each sum, the highest place of any client; all clients cut their numbers at it


@dataclass(frozen=True)
class SharesReply:
    """A client's shares: one for each participant, which only this participant can read."""

    session: str
    shares: tuple[bytes, ...]


@dataclass(frozen=True)
class MaskRequest:
    """Step 3: send the sums, hidden by the masks that the client shares with each of `senders`."""

    t: int
    federation: str
    session: str
    senders: tuple[int, ...]  # the clients that have sent shares
    shares: tuple[bytes, ...]  # from each sender, for this client


@dataclass(frozen=True)
class MaskReply:
    """A client's masked sums, modulo 2**64."""

    session: str
    confirmations: tuple[bytes, ...]  # one for each sender, who alone can check it; see `SumClient`
    masked: Mapping[str, PackedTensor] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class UnmaskRequest:
    """Step 4: send the shares that remove the masks from the sum over the survivors."""

    t: int
    federation: str
    session: str
    survivors: tuple[int, ...]  # the clients whose masked sums have arrived
    confirmations: tuple[bytes, ...]  # from each survivor, for this client


@dataclass(frozen=True)
class UnmaskReply:
    """One share for each sender: of the sender's seed if it survived, of its mask key if it dropped out.

    A share is empty if it is unreadable or withheld.
    """

    session: str
    shares: tuple[bytes, ...]


LaterRequest = SharesRequest | MaskRequest | UnmaskRequest
LaterReply = SharesReply | MaskReply | UnmaskReply
REPLIES: dict[type[Any], type[Any]] = {
    KeysRequest: KeysReply, SharesRequest: SharesReply, MaskRequest: MaskReply, UnmaskRequest: UnmaskReply,
}  # fmt: skip
TYPES = {"int": int, "str": str, "bytes": bytes, "float": float}


def threshold(share: float, asked: int) -> int:
    """Return how many of `asked` clients must help to unmask a sum: the fraction `share`, rounded up, at least two."""
    return max(2, math.ceil(Fraction(str(share)) * asked))


def typed(kind: type[Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return `plain`, the received fields of a message of type `kind`, with lists as tuples.

    Raises RefusedError for a value of wrong type.
    """
    found = dict(plain)
    for one in fields(kind):
        if one.name not in found:
            continue
        many, value = str(one.type).startswith("tuple["), found[one.name]
        wanted = TYPES[str(one.type).removeprefix("tuple[").removesuffix(", ...]")]
        if many and isinstance(value, list | tuple) and all(type(x) is wanted for x in value):
            found[one.name] = tuple(value)
        elif many or type(value) is not wanted:
            raise RefusedError(f"{one.name} is {quoted(value)}, expected {one.type}")
    return found


FIGURES = ("drift", "clipped")  # metrics of a client's round, which are summed together with its record
FIGURES_FIELD = "figures"
Integers = NDArray[np.int64]


def summand_layout(method: Method, like: Tensor) -> dict[str, tuple[Grid, int]]:
    """Return the grid and width of each sum by name: the fields of the method's record, and then the figures.

    `joined` concatenates the sums in this order. like: a vector (d,) with the model's size and precision.
    """
    widths = method.mean.widths(like.shape[-1], method)
    sums = {f"mean.{name}": (grid_of(like.dtype), width) for name, width in widths.items() if width}
    return sums | {FIGURES_FIELD: (grid_of(torch.float64), len(FIGURES))}


def summand(mean: RunningMean, figures: Mapping[str, float]) -> dict[str, ExactSum]:
    """Return the sums of one client, by their names in `summand_layout`.

    mean: the mean to which only this client's record was added. figures: the client's metrics by name.
    """
    found = {f"mean.{name}": one for name, one in mean.record_sums.items() if one.sums.shape[-1]}
    found[FIGURES_FIELD] = figures_sum()
    row = torch.tensor([[figures.get(name, 0.0) for name in FIGURES]], dtype=torch.float64)
    found[FIGURES_FIELD].add(row, torch.ones(1, 1, dtype=torch.float64))
    return found


def figures_sum() -> ExactSum:
    """Return an empty sum of figures."""
    return ExactSum(torch.empty(1, len(FIGURES), dtype=torch.float64))


def lowered(integers: Integers, up: int) -> Integers:
    """Return integers (places, width) after raising their highest place by `up` places, as in `ExactSum.raise_to`."""
    found = np.zeros_like(integers)
    if up < len(integers):
        found[up:] = integers[: len(integers) - up]
    return found


def joined(parts: Sequence[Integers]) -> Words:
    """Concatenate the integers of all sums into one vector of words, modulo 2**64."""
    return np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts]).astype("<i8").view(WORD)


def separated(words: Words, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Words]:
    """Return each sum (places, width) by name, as a view of `words`; the inverse of `joined`."""
    found, start = {}, 0
    for name, (places, width) in shapes.items():
        found[name] = words[start : start + places * width].reshape(places, width)
        start += places * width
    return found

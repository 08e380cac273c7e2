"""The messages of a secure sum: a request to each client and its reply, for each of the four steps.

The fields' names are sent over the network. Clients are numbered as in the federation, always in rising order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any

from ..messages import PackedTensor, RefusedError, TrainRequest, quoted


@dataclass(frozen=True, kw_only=True)
class KeysRequest(TrainRequest):
    """Step 1: train, keep the result, and send public keys for it."""

    session: str  # of this attempt at the sum
    weight: float  # of the client in the mean


@dataclass(frozen=True)
class KeysReply:
    """A client has trained, and agrees to be summed under these keys."""

    t: int
    samples: int  # that the client holds
    steps: int  # local steps that it took
    channel_key: bytes  # X25519, for its messages to other clients
    mask_key: bytes  # X25519, of the masks that it shares with each of them
    seed_digest: bytes  # SHA-256 of the seed of the mask that it has alone
    places: tuple[int, ...]  # the highest place of each of its sums, see `ExactSum`
    unmasked: tuple[int, ...]  # the only survivors of this round for whom it discloses shares; empty if undecided


@dataclass(frozen=True)
class SharesRequest:
    """Step 2: split the secrets into shares for these clients."""

    t: int
    federation: str
    session: str
    participants: tuple[int, ...]
    channel_keys: tuple[bytes, ...]
    mask_keys: tuple[bytes, ...]
    places: tuple[int, ...]  # the highest places of all clients, at which all clients cut their numbers


@dataclass(frozen=True)
class SharesReply:
    """A client's shares, one for each participant, which only that one can read."""

    session: str
    shares: tuple[bytes, ...]


@dataclass(frozen=True)
class MaskRequest:
    """Step 3: send the masked sums, with the masks of these clients."""

    t: int
    federation: str
    session: str
    senders: tuple[int, ...]  # the clients that have sent shares
    shares: tuple[bytes, ...]  # from each of them, for this client


@dataclass(frozen=True)
class MaskReply:
    """A client's sums, modulo 2**64, under masks."""

    session: str
    confirmations: tuple[bytes, ...]  # for each sender, which alone can check it; see `SumClient`
    masked: Mapping[str, PackedTensor] = field(repr=False, default_factory=dict)


@dataclass(frozen=True)
class UnmaskRequest:
    """Step 4: send the shares that remove the masks from the sum over the survivors."""

    t: int
    federation: str
    session: str
    survivors: tuple[int, ...]  # the clients whose masked sums have arrived
    confirmations: tuple[bytes, ...]  # from each of them, for this client


@dataclass(frozen=True)
class UnmaskReply:
    """For each sender a share: of a survivor's seed, or of the mask key of one that has gone; empty if unreadable."""

    session: str
    shares: tuple[bytes, ...]


LaterRequest = SharesRequest | MaskRequest | UnmaskRequest
LaterReply = SharesReply | MaskReply | UnmaskReply
REPLIES: dict[type[Any], type[Any]] = {
    KeysRequest: KeysReply, SharesRequest: SharesReply, MaskRequest: MaskReply, UnmaskRequest: UnmaskReply,
}  # fmt: skip
TYPES = {"int": int, "str": str, "bytes": bytes, "float": float}


def threshold(share: float, asked: int) -> int:
    """Return how many of a round's `asked` clients must help to remove the masks: a `share` of them, at least two."""
    return max(2, math.ceil(Fraction(str(share)) * asked))


def typed(kind: type[Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the received fields of a message, lists as tuples. Raises RefusedError for a value of another type."""
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

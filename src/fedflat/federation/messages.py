"""The messages between server and clients, their conversion to bytes, and the interface of a transport.

A receiver does not trust the sender. The usual formats (npy, safetensors, pickle) begin with a header that the sender
writes and the receiver would have to trust. Here the receiver knows dtype and shape in advance and only compares them.
The names of fields are sent over the network, so renaming a field changes the protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..core.compression import Compression
from ..core.errors import printable
from ..core.records import Record
from .compressed_fields import decoded, encoded

COMPRESSED = "|u1"  # bytes, whose meaning the receiver knows
DTYPES = {torch.float32: "<f4", torch.float64: "<f8"}  # in numpy's notation: little-endian
NOTHING_COMPRESSED: Mapping[str, Compression] = {}  # no field is compressed
QUOTED = 60  # characters of a received value that an error message repeats
R = TypeVar("R", bound=Record)


class RefusedError(ValueError):
    """A received message is not what was expected; the error names the field."""


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as bytes: its numbers one after another, without a header; or compressed, as a tensor of bytes."""

    dtype: str  # one of `DTYPES`, or `COMPRESSED`
    shape: tuple[int, ...]
    data: bytes


def pack(record: Record, compressed: Mapping[str, Compression] = NOTHING_COMPRESSED) -> dict[str, PackedTensor]:
    """Convert the fields of a record (width,) to bytes, except fields of width 0, which the method does not use.

    compressed: how fields of the record are compressed, by name.
    """
    packed = {}
    for name, x in record.tensors().items():
        if name in compressed:
            data = encoded(x.detach().cpu(), compressed[name])
            packed[name] = PackedTensor(COMPRESSED, (len(data),), data)
        elif x.numel():
            dtype = DTYPES[x.dtype]
            numbers = x.detach().cpu().contiguous().numpy().astype(dtype, copy=False)
            packed[name] = PackedTensor(dtype, tuple(x.shape), numbers.tobytes())
    return packed


def unpack(
    record: type[R], widths: Mapping[str, int], dtype: torch.dtype, packed: Mapping[str, PackedTensor],
    compressed: Mapping[str, Compression] = NOTHING_COMPRESSED,
) -> R:  # fmt: skip
    """Return the record (width,) that was given to `pack`, in newly allocated memory.

    record: the type of the record. widths: the width of each field, see `Record.widths`. compressed: how fields are
    compressed, by name. Raises RefusedError, naming
    the field, unless `packed` has exactly the fields whose width is not 0, and each of these fields has the expected
    dtype, shape and number of bytes, and only finite numbers. Memory for a field is allocated only after dtype, shape
    and number of bytes are found to be correct.
    """
    expected = {name for name, width in widths.items() if width}
    if packed.keys() != expected:
        raise RefusedError(f"the fields are {quoted(sorted(map(str, packed)))}, expected {quoted(sorted(expected))}")
    empty = torch.empty(0, dtype=dtype)
    return record(**{n: _unpack_tensor(n, width, dtype, packed[n], compressed.get(n)) if width else empty
                     for n, width in widths.items()})  # fmt: skip


def _unpack_tensor(
    name: str, width: int, dtype: torch.dtype, packed: PackedTensor, how: Compression | None
) -> Tensor:  # fmt: skip
    expected = {"dtype": DTYPES[dtype], "shape": (width,), "bytes": width * dtype.itemsize}
    if how is not None:
        size = how.bytes_of(width, dtype.itemsize)
        expected = {"dtype": COMPRESSED, "shape": (size,), "bytes": size}
    found = {"dtype": packed.dtype, "shape": tuple(packed.shape), "bytes": len(packed.data)}
    for what, value in expected.items():
        if found[what] != value:
            raise RefusedError(f"{name}: {what} is {quoted(found[what])}, expected {value}")
    if how is not None:
        try:
            return decoded(packed.data, how, width, dtype)
        except ValueError as error:
            raise RefusedError(f"{name}: {error}") from error
    # Copied, because the received bytes are read-only and may not be aligned.
    x = torch.from_numpy(np.frombuffer(packed.data, DTYPES[dtype]).astype(DTYPES[dtype][1:]))
    if not all(end.isfinite() for end in x.aminmax()):  # NaN if one number is; many times as fast as looking at each
        broken = int((~torch.isfinite(x)).sum())
        raise RefusedError(f"{name}: {broken:,} of {width:,} numbers are NaN or infinite")
    return x


def quoted(value: object) -> str:
    """Return the repr of a received value for an error message: one line of at most `QUOTED` characters."""
    return cut(repr(value), QUOTED)


def cut(text: str, limit: int) -> str:
    """Cut received text of any length to one line of at most `limit` characters, for an error message."""
    text = printable(text[: limit + 1])
    return text if len(text) <= limit else f"{text[:limit]}..."


@dataclass(frozen=True)
class TrainRequest:
    """The server asks a client to train in round `t`."""

    t: int
    since: int  # last round in which this client's update was accepted, or -1; the client uses its record of that round
    # `since` in each checkpoint that the server may restore; the client keeps its records of these rounds.
    safe: tuple[int, ...]
    number: int  # of the client: the position of its name among all clients' names, sorted
    share: float  # sampled clients / all clients
    sampled: int  # clients that take part in the round
    federation: str  # name of the federation, under which the client stores its state
    digest: str  # of the study
    down: Mapping[str, PackedTensor] = field(repr=False, default_factory=dict)  # the server's broadcast


@dataclass(frozen=True)
class ClientInfo:
    """A client's name, and the properties in which it must agree with the server."""

    name: str
    samples: int
    shape: tuple[int, ...]  # of a sample
    digest: str  # of the study
    version: str  # of fedflat


@dataclass(frozen=True)
class TrainReply:
    """The result of a client's training."""

    t: int
    samples: int  # that the client holds
    steps: int  # local steps that it took
    gradients: int  # minibatch gradients that it computed
    drift: float  # ||w_i - w^t||
    up: Mapping[str, PackedTensor] = field(repr=False, default_factory=dict)  # the client's update


@dataclass(frozen=True)
class Failure:
    """The reason why there is no result from a client, given by the client or by the transport."""

    reason: str


Reply = TrainReply | Failure


class Transport(Protocol):
    """Sends requests to clients and returns their replies."""

    def exchange(self, requests: Mapping[str, Any], deadline: float) -> Iterator[tuple[str, Any]]:
        """Send each client its request; yield client names and replies as they arrive, for at most `deadline` seconds.

        requests: by client name.

        A reply has the type that belongs to its request, such as `TrainReply` for a `TrainRequest`, or is a `Failure`.
        A client that does not reply is not yielded. The transport determines the sender's name itself, regardless of
        the content of the reply.
        """

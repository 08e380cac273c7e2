"""Converts messages to Flower's records and back. Received records are checked: the receiver does not trust them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ..messages import ClientInfo, Failure, PackedTensor, RefusedError, TrainReply, TrainRequest, cut
from ..secure_sum.messages import (
    REPLIES,
    KeysReply,
    KeysRequest,
    LaterReply,
    LaterRequest,
    MaskReply,
    MaskRequest,
    SharesReply,
    SharesRequest,
    UnmaskReply,
    UnmaskRequest,
    typed,
)

SumRequest = KeysRequest | LaterRequest
AnyMessage = TrainRequest | TrainReply | Failure | ClientInfo | SumRequest | KeysReply | LaterReply
# The name of the record with a message's plain fields. These names must not change: a node with another version of
# fedflat must be able to read the record, and to report that its version does not fit.
RECORD: dict[type[Any], str] = {
    TrainRequest: "order", TrainReply: "answer", Failure: "failure", ClientInfo: "introduction",
    KeysRequest: "keys-order", KeysReply: "keys-answer", SharesRequest: "shares-order", SharesReply: "shares-answer",
    MaskRequest: "mask-order", MaskReply: "mask-answer", UnmaskRequest: "unmask-order", UnmaskReply: "unmask-answer",
}  # fmt: skip
# The field of a message that has vectors. The record of these vectors has the same name.
VECTORS: dict[type[Any], str] = {TrainRequest: "down", TrainReply: "up", KeysRequest: "down", MaskReply: "masked"}
SERIALIZATION = "fedflat.plain"  # of arrays: the numbers one after another, without a header
REASON_LENGTH = 300  # most characters of a client's reason


def to_records(message: AnyMessage) -> RecordDict:
    """Put a message's plain fields into one record, and its vectors, if it has any, into another."""
    vectors = VECTORS.get(type(message))
    plain = {f.name: getattr(message, f.name) for f in fields(message) if f.name != vectors}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
    content = RecordDict({RECORD[type(message)]: ConfigRecord(plain)})
    if vectors:
        packed: Mapping[str, PackedTensor] = getattr(message, vectors)
        arrays = {name: Array(x.dtype, x.shape, SERIALIZATION, x.data) for name, x in packed.items()}
        content[vectors] = ArrayRecord(arrays)
    return content


def vector_bytes(content: RecordDict) -> int:
    """Return the number of bytes of all vectors in `content`."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def read_message(content: RecordDict, kind: type[Any]) -> Any:
    """Read a message of the type `kind`, and check the types of its plain fields. Vectors are not checked.

    Raises RefusedError for any other content.
    """
    record, vectors = RECORD[kind], VECTORS.get(kind)
    expected = {record, vectors} - {None}
    if set(content) != expected:
        raise RefusedError(f"the records are {_quoted(sorted(content))}, expected {sorted(filter(None, expected))}")
    plain, names = content[record], {f.name for f in fields(kind)} - {vectors}
    if not isinstance(plain, ConfigRecord) or set(plain) != names:
        raise RefusedError(f"{record} has the fields {_quoted(sorted(plain))}, expected {sorted(names)}")
    return kind(**typed(kind, plain), **({vectors: _packed(content[vectors])} if vectors else {}))


def read_sum_request(content: RecordDict) -> SumRequest | None:
    """Read the request for a step of a secure sum; return None for a message of any other type.

    Raises RefusedError if the request is malformed.
    """
    for kind in REPLIES:
        if RECORD[kind] in content:
            request: SumRequest = read_message(content, kind)
            return request
    return None


def read_reply(content: RecordDict, request: object) -> Any:
    """Read the reply to `request`, or a Failure, from a message. Raises RefusedError for a malformed message."""
    if RECORD[Failure] in content:
        return Failure(_quoted(read_message(content, Failure).reason))
    return read_message(content, REPLIES.get(type(request), TrainReply))


def read_client_info(content: RecordDict) -> ClientInfo:
    """Read a ClientInfo from a message.

    Raises RefusedError for a malformed message, and for a Failure, with the reason that the Failure gives.
    """
    if RECORD[Failure] in content:
        raise RefusedError(_quoted(read_message(content, Failure).reason))
    info: ClientInfo = read_message(content, ClientInfo)
    return info


def _packed(arrays: object) -> dict[str, PackedTensor]:
    """Return a message's vectors by name, unchecked. Raises RefusedError for anything but arrays of plain numbers."""
    if not isinstance(arrays, ArrayRecord):
        raise RefusedError(f"the vectors are a {type(arrays).__name__}, expected an ArrayRecord")
    other = sorted({array.stype for array in arrays.values()} - {SERIALIZATION})
    if other:
        raise RefusedError(f"the vectors are written as {_quoted(other)}, expected {SERIALIZATION!r}")
    return {name: PackedTensor(array.dtype, tuple(array.shape), array.data) for name, array in arrays.items()}


def _quoted(value: object) -> str:
    return cut(str(value), REASON_LENGTH)

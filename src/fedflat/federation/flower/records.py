"""What server and clients say to each other, as Flower's records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from ...core.errors import printable
from ..codec import Packed, RefusedError
from ..messages import ClientInfo, Failure, TrainReply, TrainRequest

PLAIN = "fedflat.plain"  # how arrays are written: numbers one after another, without a header
SHOWN = 300  # characters of a client's reason
VECTORS = {TrainRequest: "down", TrainReply: "up"}  # the field that holds them
Said = TrainRequest | TrainReply | Failure | ClientInfo


def to_records(said: Said) -> RecordDict:
    """A message as records: its plain fields, under the message's name, and its vectors, under their field's."""
    vectors = VECTORS.get(type(said), "")
    plain = {f.name: _plain(getattr(said, f.name)) for f in fields(said) if f.name != vectors}
    content = RecordDict({_title(type(said)): ConfigRecord(plain)})
    if vectors:
        content[vectors] = _arrays(getattr(said, vectors))
    return content


def read_train_request(content: RecordDict) -> TrainRequest:
    """An order. Raises RefusedError if it is none."""
    order: TrainRequest = _read(content, TrainRequest)
    safe: Any = order.safe
    if not isinstance(safe, list) or not all(type(t) is int for t in safe):
        raise RefusedError(f"safe is {_short(safe)}, expected rounds")
    return replace(order, safe=tuple(safe))


def read_train_reply(content: RecordDict) -> TrainReply | Failure:
    """A client's answer, of which nothing is checked but that it has an answer's fields. Raises RefusedError."""
    answer: TrainReply | Failure = _read(content, Failure if _title(Failure) in content else TrainReply)
    return Failure(_short(answer.reason)) if isinstance(answer, Failure) else answer


def read_client_info(content: RecordDict) -> ClientInfo:
    """What a client says of itself. Raises RefusedError, with the client's reason if it gives one."""
    if _title(Failure) in content:
        raise RefusedError(_short(_read(content, Failure).reason))
    said = _read(content, ClientInfo)
    return ClientInfo(**vars(said) | {"shape": tuple(said.shape) if isinstance(said.shape, list) else said.shape})


def _read(content: RecordDict, kind: type[Any]) -> Any:
    vectors = VECTORS.get(kind)
    expected = {_title(kind)} | ({vectors} if vectors else set())
    if set(content) != expected:
        raise RefusedError(f"the records are {_short(sorted(content))}, expected {sorted(expected)}")
    plain, names = content[_title(kind)], {f.name for f in fields(kind)} - {vectors}
    if not isinstance(plain, ConfigRecord) or set(plain) != names:
        raise RefusedError(f"{_title(kind)} has the fields {_short(sorted(plain))}, expected {sorted(names)}")
    return kind(**plain, **({vectors: _packed(content[vectors])} if vectors else {}))


def _arrays(vectors: Mapping[str, Packed]) -> ArrayRecord:
    return ArrayRecord({name: Array(x.kind, x.shape, PLAIN, x.data) for name, x in vectors.items()})


def _packed(record: Any) -> dict[str, Packed]:
    if not isinstance(record, ArrayRecord):
        raise RefusedError(f"the vectors are a {type(record).__name__}, expected an ArrayRecord")
    other = sorted({array.stype for array in record.values()} - {PLAIN})
    if other:
        raise RefusedError(f"the vectors are written as {_short(other)}, expected {PLAIN!r}")
    return {name: Packed(array.dtype, tuple(array.shape), array.data) for name, array in record.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _title(kind: type[Any]) -> str:
    """The name of a message's record, the same in all versions: so nodes of another one can be told that they are."""
    return {TrainRequest: "order", TrainReply: "answer", Failure: "failure", ClientInfo: "introduction"}[kind]


def _short(value: object) -> str:
    """What was sent, for a message: on one line, and cut short."""
    text = printable(str(value)[: SHOWN + 1])
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."

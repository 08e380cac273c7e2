"""The sizes of a parquet file's pages, from the pages' own headers.

A decoder takes memory as these say, whatever the description at the file's end says, and a file may lie there.
Headers are structs in the compact protocol of Apache Thrift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from .bounds import allowed

HEADER = 2**16  # bytes of a page's header, at most; statistics in it are cut to some hundred
DEPTH = 8  # of structs in a header; it has three
ENCODING = {5: 2, 7: 2, 8: 4}  # where the header of a data page, a dictionary page and a data page 2 keeps its encoding
DELTA_BYTE_ARRAY = 7  # texts that repeat the beginning of the one before: a byte may stand for any number of bytes


def check(file: IO[bytes], start: int, length: int) -> None:
    """Raise ValueError if a page of the column chunk at byte `start`, `length` bytes long, unpacks to too much."""
    end = start + length
    while start < end:
        file.seek(start)
        header = _Compact(file.read(HEADER))
        page = header.struct()
        unpacked, packed = page.get(2), page.get(3)
        if not (isinstance(unpacked, int) and isinstance(packed, int) and unpacked >= 0 and packed >= 0):
            raise ValueError("a page without its sizes")
        if unpacked > allowed(packed):
            raise ValueError(
                f"a page of {packed:,} bytes unpacks to {unpacked:,}; at most {allowed(packed):,} are read"
            )
        if DELTA_BYTE_ARRAY in _encodings(page):
            raise ValueError("packed in a way that is not read, delta byte array")
        start += header.place + packed


def _encodings(page: dict[int, Any]) -> Iterator[Any]:
    for field, encoding in ENCODING.items():
        if isinstance(page.get(field), dict):
            yield page[field].get(encoding)


@dataclass
class _Compact:
    """Reads Thrift's compact protocol. Raises IndexError or ValueError for what is not that."""

    content: bytes
    place: int = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct by their numbers."""
        if depth > DEPTH:
            raise ValueError("nested too deep")
        fields: dict[int, Any] = {}
        number = 0
        while begin := self._byte():
            number = number + (begin >> 4) if begin >> 4 else _signed(self._varint())
            fields[number] = self._value(begin & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return _signed(self._varint())
            case 7:
                return self._skipped(8)
            case 8:
                return self._skipped(self._varint())
            case 12:
                return self.struct(depth + 1)
        raise ValueError("a header of an unknown kind")

    def _byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value, shift = value | (byte & 127) << shift, shift + 7
        return value | byte << shift

    def _skipped(self, size: int) -> None:
        self.place += size
        if self.place > len(self.content):
            raise ValueError("cut off")


def _signed(value: int) -> int:
    return value >> 1 ^ -(value & 1)

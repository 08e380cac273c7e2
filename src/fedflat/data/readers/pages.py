"""Where a parquet file has its columns, and what its pages unpack to, read without unpacking anything.

A decoder takes memory as the pages' own headers say, whatever the footer (the description at the file's end) says; a
file may lie there. The footer is read here, too, as pyarrow ends the process when it is asked for the columns of one
that contradicts itself. Both are structs in the compact protocol of Apache Thrift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from .bounded import size_of
from .bounds import ENTRIES, FOOTER, SAMPLES, VALUES, allowed

MARK = b"PAR1"  # how a parquet file ends
HEADER = 2**16  # bytes of a page's header, at most; statistics in it are cut to some hundred
DEPTH = 16  # of structs and lists in each other; a footer has nine
ENCODING = {5: 2, 7: 2, 8: 4}  # where the header of a data page, a dictionary page and a data page 2 keeps its encoding
BOOLEAN = (1, 2)  # kinds of a field that is its own value: true, false
LONG = 15  # in place of a list's size: it follows
BITS = 64  # of a number
DELTA_BYTE_ARRAY = 7  # texts that repeat the beginning of the one before: a byte may stand for any number of bytes


@dataclass(frozen=True)
class Group:
    """A group of rows."""

    rows: int
    chunks: list[tuple[int, int]]  # of each column: where it begins in the file, and how many bytes it has


def groups(file: IO[bytes]) -> list[Group]:
    """The groups of rows of a parquet file. Raises ValueError, KeyError or TypeError for a footer that is none."""
    size = size_of(file)
    file.seek(max(size - 8, 0))
    length, mark = int.from_bytes(file.read(4), "little"), file.read(4)
    if mark != MARK or length > size - 8:
        raise ValueError("its end is missing")
    if length > FOOTER:
        raise ValueError(f"its footer has {length:,} bytes; at most {FOOTER:,} are read")
    file.seek(size - 8 - length)
    footer = Compact(file.read(length)).struct()
    found = [_group(group) for group in footer[4]]
    rows = sum(group.rows for group in found)
    if rows != footer[3]:
        raise ValueError("its rows do not add up")
    return found


def _group(said: dict[int, Any]) -> Group:
    rows = said[3]
    if not 0 <= rows <= SAMPLES:
        raise ValueError(f"{rows:,} rows; at most {SAMPLES:,} are read")
    return Group(rows, [_chunk(chunk[3]) for chunk in said[1]])


def _chunk(said: dict[int, Any]) -> tuple[int, int]:
    start, dictionary = said[9], said.get(11, 0)
    return (dictionary if 0 < dictionary < start else start), said[7]


def check(file: IO[bytes], start: int, length: int) -> None:
    """Raise ValueError if a page of the column chunk at byte `start`, `length` bytes long, unpacks to too much."""
    end = start + length
    while start < end:
        file.seek(start)
        header = Compact(file.read(HEADER))
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
class Compact:
    """Reads Thrift's compact protocol. Raises IndexError or ValueError for what is not that."""

    content: bytes
    place: int = 0
    values: int = 0  # read so far

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """The fields of a struct by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while begin := self._byte():
            number = number + (begin >> 4) if begin >> 4 else _signed(self._varint())
            if number in fields or not 0 < number < 2**15:
                raise ValueError("a field twice, or with no number")
            fields[number] = begin & 15 == 1 if begin & 15 in BOOLEAN else self._value(begin & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        self.values += 1
        if depth > DEPTH or self.values > VALUES:
            raise ValueError("nested too deep, or of too many values")
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return _signed(self._varint())
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._varint())
            case 9 | 10:
                return self._list(depth + 1)
            case 12:
                return self.struct(depth + 1)
        raise ValueError("a value of an unknown kind")

    def _list(self, depth: int) -> list[Any]:
        begin = self._byte()
        size = self._varint() if begin >> 4 == LONG else begin >> 4
        if size > ENTRIES:
            raise ValueError(f"a list of {size:,}; at most {ENTRIES:,} are read")
        return [self._value(begin & 15, depth) for _ in range(size)]

    def _byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128:
            value, shift = value | (byte & 127) << shift, shift + 7
            if shift > BITS:
                raise ValueError("a number without end")
        return value | byte << shift

    def _bytes(self, size: int) -> bytes:
        self.place += size
        if self.place > len(self.content):
            raise ValueError("cut off")
        return self.content[self.place - size : self.place]


def _signed(value: int) -> int:
    return value >> 1 ^ -(value & 1)

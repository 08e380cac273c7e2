"""The footer and the page headers of a parquet file, read without unpacking any page.

A decoder allocates as much memory as the header of each page claims. It ignores the sizes in the footer, which is the
description at the end of the file; both claims may be false. The footer is read here, too, because pyarrow ends the
process when it is asked for the columns of a footer that contradicts itself. Footer and page headers are structs in
the compact protocol of Apache Thrift.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, Any

from .untrusted_files import MAX_ENTRIES, MAX_FOOTER_BYTES, MAX_SAMPLES, MAX_VALUES, file_limit, file_size

MAGIC = b"PAR1"  # the last bytes of a parquet file
MAX_PAGE_HEADER_BYTES = 2**16  # statistics in a header are cut to some hundred
MAX_DEPTH = 16  # of nested structs and lists; a footer has nine
ENCODING = {5: 2, 7: 2, 8: 4}  # by header (data page, dictionary page, data page 2): the number of its encoding field
BOOLEAN = (1, 2)  # types of a field that hold its value: true, false
LONG_LIST = 15  # in place of a list's size: the size follows as a number
MAX_BITS = 64  # of a number
DELTA_BYTE_ARRAY = 7  # each text reuses the beginning of the one before, so one byte may unpack to many


def row_groups(file: IO[bytes]) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return each row group of a parquet file: the number of rows, and of each column the first byte and the length.

    A damaged footer raises ValueError, LookupError or TypeError.
    """
    size = file_size(file)
    file.seek(max(size - 8, 0))
    length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    if magic != MAGIC or length > size - 8:
        raise ValueError("its end is missing")
    if length > MAX_FOOTER_BYTES:
        raise ValueError(f"its footer has {length:,} bytes; at most {MAX_FOOTER_BYTES:,} are read")
    file.seek(size - 8 - length)
    footer = ThriftReader(file.read(length)).struct()
    groups = []
    for group in footer[4]:
        rows, chunks = group[3], []
        if not 0 <= rows <= MAX_SAMPLES:
            raise ValueError(f"{rows:,} rows; at most {MAX_SAMPLES:,} are read")
        for column in (chunk[3] for chunk in group[1]):
            start, dictionary = column[9], column.get(11, 0)
            chunks.append((dictionary if 0 < dictionary < start else start, column[7]))
        groups.append((rows, chunks))
    if sum(rows for rows, _ in groups) != footer[3]:
        raise ValueError("its rows do not add up")
    return groups


def check_pages(file: IO[bytes], start: int, length: int) -> None:
    """Raise ValueError if a page in the column chunk (`start`, `length` in bytes) would unpack to too many bytes."""
    end = start + length
    while start < end:
        file.seek(start)
        reader = ThriftReader(file.read(MAX_PAGE_HEADER_BYTES))
        header = reader.struct()
        unpacked, packed = header.get(2), header.get(3)
        if not (isinstance(unpacked, int) and isinstance(packed, int) and unpacked >= 0 and packed >= 0):
            raise ValueError("a page without its sizes")
        if unpacked > file_limit(packed):
            limit = f"at most {file_limit(packed):,} are read"
            raise ValueError(f"a page of {packed:,} bytes unpacks to {unpacked:,}; {limit}")
        pages = {page: fields for page, fields in header.items() if page in ENCODING and isinstance(fields, dict)}
        if DELTA_BYTE_ARRAY in (fields.get(ENCODING[page]) for page, fields in pages.items()):
            raise ValueError("packed in a way that is not read, delta byte array")
        start += reader.position + packed


@dataclass
class ThriftReader:
    """Reads Thrift's compact protocol. Raises IndexError or ValueError for content in another format."""

    content: bytes
    position: int = 0
    values: int = 0  # read so far

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Read a struct; return its fields by number."""
        fields: dict[int, Any] = {}
        number = 0
        while begin := self._byte():
            number = number + (begin >> 4) if begin >> 4 else self._signed()
            if number in fields or not 0 < number < 2**15:
                raise ValueError("a field twice, or with no number")
            fields[number] = begin & 15 == 1 if begin & 15 in BOOLEAN else self._value(begin & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        self.values += 1
        if depth > MAX_DEPTH or self.values > MAX_VALUES:
            raise ValueError("nested too deep, or of too many values")
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self._bytes(8)
            case 8:
                return self._bytes(self._unsigned())
            case 9 | 10:
                return self._list(depth + 1)
            case 12:
                return self.struct(depth + 1)
        raise ValueError("a value of an unknown kind")

    def _list(self, depth: int) -> list[Any]:
        begin = self._byte()
        size = self._unsigned() if begin >> 4 == LONG_LIST else begin >> 4
        if size > MAX_ENTRIES:
            raise ValueError(f"a list of {size:,}; at most {MAX_ENTRIES:,} are read")
        return [self._value(begin & 15, depth) for _ in range(size)]

    def _byte(self) -> int:
        self.position += 1
        return self.content[self.position - 1]

    def _bytes(self, size: int) -> bytes:
        self.position += size
        if self.position > len(self.content):
            raise ValueError("cut off")
        return self.content[self.position - size : self.position]

    def _unsigned(self) -> int:
        """Read a number with 7 bits in each byte, the lowest first."""
        value = shift = 0
        while (byte := self._byte()) & 128:
            value, shift = value | (byte & 127) << shift, shift + 7
            if shift > MAX_BITS:
                raise ValueError("a number without end")
        return value | byte << shift

    def _signed(self) -> int:
        """Read a number in zigzag code: 0, -1, 1, -2, ... are written as 0, 1, 2, 3, ..."""
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)

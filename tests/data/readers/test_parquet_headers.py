from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedflat.data.readers import parquet_headers, untrusted_files
from fedflat.data.readers.parquet_headers import MAX_DEPTH, check_pages, row_groups
from support.hostile_data import varint

COMPRESSIONS = ("NONE", "SNAPPY", "GZIP", "ZSTD", "LZ4", "BROTLI")


def chunk(path: Path, **options) -> tuple[int, int]:
    """A column of texts in a file: where it begins, and its bytes."""
    rows = pa.table({"text": [f"text {i % 700} {'x' * 50}" for i in range(5_000)]})
    pq.write_table(rows, path, data_page_size=1_000, **options)
    column = pq.read_metadata(path).row_group(0).column(0)
    starts = [column.data_page_offset, column.dictionary_page_offset or column.data_page_offset]
    return min(starts), column.total_compressed_size


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
def test_whatever_a_writer_writes_is_let_through(
    tmp_path: Path, compression: str, version: str, dictionary: bool
) -> None:
    options = {"compression": compression, "data_page_version": version, "use_dictionary": dictionary}
    start, length = chunk(tmp_path / "a.parquet", **options)
    with (tmp_path / "a.parquet").open("rb") as file:
        check_pages(file, start, length)


def test_a_page_may_unpack_to_as_much_as_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, length = chunk(tmp_path / "a.parquet", compression="ZSTD", use_dictionary=False)
    monkeypatch.setattr(untrusted_files, "MAX_RATIO", 1)
    monkeypatch.setattr(untrusted_files, "ALWAYS_ALLOWED_BYTES", 100)
    with (tmp_path / "a.parquet").open("rb") as file, pytest.raises(ValueError, match="unpacks to"):
        check_pages(file, start, length)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_texts_that_repeat_the_last_are_refused(tmp_path: Path, version: str) -> None:
    options = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY", "data_page_version": version}
    start, length = chunk(tmp_path / "a.parquet", **options)
    with (tmp_path / "a.parquet").open("rb") as file, pytest.raises(ValueError, match="delta byte array"):
        check_pages(file, start, length)


def test_groups_and_columns_are_where_pyarrow_finds_them(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": range(1_000), "b": ["x", None] * 500, "c": [[{"d": 1, "e": b"2"}]] * 1_000})
    pq.write_table(table, path, row_group_size=300, use_dictionary=["b"])
    metadata = pq.read_metadata(path)
    with path.open("rb") as file:
        found = row_groups(file)
    assert [rows for rows, _ in found] == [300, 300, 300, 100]
    for i, (_, chunks) in enumerate(found):
        for j, (start, length) in enumerate(chunks):
            column = metadata.row_group(i).column(j)
            assert start == (column.dictionary_page_offset or column.data_page_offset)
            assert length == column.total_compressed_size
        assert len(chunks) == metadata.num_columns


def test_groups_without_end_or_with_too_much_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk(tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()

    def of(content: bytes) -> list[tuple[int, list[tuple[int, int]]]]:
        (tmp_path / "b.parquet").write_bytes(content)
        with (tmp_path / "b.parquet").open("rb") as file:
            return row_groups(file)

    assert sum(rows for rows, _ in of(whole)) == 5_000
    for content in (b"", whole[:-1], whole[-100:], whole[:-8] + b"\xff\xff\xff\x7fPAR1"):
        with pytest.raises(ValueError, match="its end is missing"):
            of(content)
    for name, most, said in (
        ("MAX_SAMPLES", 4_999, "rows"),
        ("MAX_FOOTER_BYTES", 10, "its footer has"),
        ("MAX_VALUES", 10, "of too many values"),
        ("MAX_ENTRIES", 1, "a list of 2"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(parquet_headers, name, most)
            with pytest.raises(ValueError, match=said):
                of(whole)


def field(number: int, value: int) -> bytes:
    """A field of 32 bits in Thrift's compact protocol, its number written out."""
    return b"\x05" + varint(2 * number) + varint(2 * value)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x15",
        b"\x15\x00\x00",
        field(2, 10) + b"\x00",
        field(3, 10) + b"\x00",
        b"\x18\xff\xff\xff\xff\x0f",
        b"\x19\x0f",
        b"\x1c" * (MAX_DEPTH + 2),
        b"\x15" + b"\xff" * 100_000,
    ],
    ids=["empty", "cut", "no sizes", "no packed", "no unpacked", "long text", "list", "deep", "endless number"],
)
def test_headers_that_are_none_raise(header: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        check_pages(io.BytesIO(header), 0, 10)


@pytest.mark.parametrize("sizes", [(-1, 10), (10, -1)])
def test_negative_sizes_raise(sizes: tuple[int, int]) -> None:
    unpacked, packed = (b"\x01" if size < 0 else varint(2 * size) for size in sizes)
    with pytest.raises(ValueError, match="without its sizes"):
        check_pages(io.BytesIO(b"\x15\x00\x15" + unpacked + b"\x15" + packed + b"\x00"), 0, 10)


def test_it_ends_at_the_end_of_the_column() -> None:
    page = b"\x15\x00" + b"\x15" + varint(20) + b"\x15" + varint(20) + b"\x00" + bytes(10)
    file = io.BytesIO(page * 3 + b"\xff" * 20)
    check_pages(file, 0, 3 * len(page))
    with pytest.raises((ValueError, IndexError)):
        check_pages(file, 0, 3 * len(page) + 1)

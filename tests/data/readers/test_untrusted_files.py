from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedflat.core.errors import InputError
from fedflat.data.readers import file_search, layouts, pictures, table_files, untrusted_files
from fedflat.data.readers.file_search import find, plain_files
from fedflat.data.readers.layouts import Csv, Shape
from fedflat.data.readers.pictures import decode_pictures
from fedflat.data.readers.untrusted_files import (
    LimitedStream,
    expect,
    file_limit,
    in_one_line,
    listed,
    open_regular,
    parsing,
    read_regular,
    read_stream,
)
from support.files import encoded, random_pictures, refused, write_files, write_tar, write_zip, zipped


def test_a_file_may_have_as_many_bytes_as_stated_and_no_more(tmp_path: Path) -> None:
    write_files(tmp_path, {"one": b"12345"})
    assert read_regular(tmp_path / "one", limit=5) == b"12345"
    with refused(str(tmp_path / "one"), "5 bytes; at most 4 are read"):
        read_regular(tmp_path / "one", limit=4)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refused(str(tmp_path / "pipe"), "not a file"), open_regular(tmp_path / "pipe"):
        pass


@pytest.mark.parametrize("piece", [1, 3, 5, 100])
def test_what_is_unpacked_is_whole_up_to_the_bound(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_files, "CHUNK_BYTES", piece)
    assert read_stream(io.BytesIO(b"12345"), "one", 5) == b"12345"
    with refused("data file one: it unpacks to more than 4 bytes"):
        read_stream(io.BytesIO(b"12345"), "one", 4)


def test_a_stream_is_read_up_to_its_bounds() -> None:
    def stream(limit: int = 10, chunk: int = 10) -> LimitedStream:
        return LimitedStream(io.BytesIO(b"0123456789"), "one", limit, chunk)

    assert stream().read(10) == stream().read() == b"0123456789"
    assert stream().seek(5) == 5
    for ask in (lambda: stream(limit=9).read(10), lambda: stream(chunk=9).read(), lambda: stream(limit=4).seek(5)):
        with refused("data file one: it unpacks to more than"):
            ask()
    with refused("data file one: a part of it says that it has 100 bytes; at most 10 are read"):
        stream().read(100)


def test_small_files_may_unpack_to_more_times_their_size_than_large_ones() -> None:
    assert file_limit(0) == file_limit(1) == untrusted_files.ALWAYS_ALLOWED_BYTES
    assert file_limit(untrusted_files.MIB) == untrusted_files.MAX_RATIO * untrusted_files.MIB
    assert file_limit(2**60) == untrusted_files.MAX_FILE_BYTES


CONTENT = {"one": bytes(5_000), "two": b"second"}


@pytest.mark.parametrize("kind", ["gz", "zip", "gz in zip", "tar.gz", "gz in tar"])
def test_every_way_of_packing_is_bounded(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the size of the packed file: 5,000 zero bytes pack to some thirty."""
    packed = {f"{name}.gz": zipped(some) for name, some in CONTENT.items()}
    write = {
        "gz": lambda: write_files(tmp_path, packed),
        "zip": lambda: write_zip(tmp_path / "a.zip", CONTENT),
        "gz in zip": lambda: write_zip(tmp_path / "a.zip", packed),
        "tar.gz": lambda: write_tar(tmp_path / "a.tar.gz", CONTENT),
        "gz in tar": lambda: write_tar(tmp_path / "a.tar", packed, "w"),
    }
    write[kind]()
    assert find(tmp_path, list(CONTENT))["one"]() == CONTENT["one"]
    monkeypatch.setattr(untrusted_files, "ALWAYS_ALLOWED_BYTES", 4_999)
    monkeypatch.setattr(untrusted_files, "MAX_RATIO", 1)
    with refused("data file", "it unpacks to more than"):
        find(tmp_path, list(CONTENT))["one"]()


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zips_that_take_memory_as_they_say_are_refused(tmp_path: Path, kind: int) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", kind) as archive:
        for name, some in CONTENT.items():
            archive.writestr(name, some)
    with refused(str(tmp_path / "a.zip"), "one is packed in a way not read"):
        find(tmp_path, list(CONTENT))["one"]()


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_archives_of_too_many_files_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (write_zip if name.endswith("zip") else write_tar)(tmp_path / name, CONTENT)
    monkeypatch.setattr(file_search, "MAX_MEMBERS", 2)
    assert find(tmp_path, list(CONTENT)) is not None
    monkeypatch.setattr(file_search, "MAX_MEMBERS", 1)
    with refused(str(tmp_path / name), "more than 1 files in an archive"):
        find(tmp_path, list(CONTENT))


def test_the_last_of_several_members_of_a_name_is_read_as_tar_unpacks_them(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for some in (b"first", b"last"):
            member = tarfile.TarInfo("one")
            member.size = len(some)
            archive.addfile(member, io.BytesIO(some))
    assert find(tmp_path, ["one"])["one"]() == b"last"


def test_sparse_members_are_passed_over(tmp_path: Path) -> None:
    """Their size is what they would be, not what the archive holds."""
    member = tarfile.TarInfo("one")
    member.type = tarfile.GNUTYPE_SPARSE
    (tmp_path / "a.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    assert find(tmp_path, ["one"]) is None


def test_links_that_go_round_and_links_to_folders_are_passed_over(tmp_path: Path) -> None:
    write_files(tmp_path, {"b": b"", "a/c": b""})
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    assert plain_files(tmp_path) == [tmp_path / name for name in ("a/c", "b", "link")]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"a/b": b""})
    original = os.scandir

    def scandir(path: Path) -> object:
        if Path(path).name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with refused(f"{tmp_path / 'a'} cannot be read: Permission denied"):
        plain_files(tmp_path)


@pytest.mark.parametrize(("size", "shape"), [((30, 20), (20, 30)), ((60, 2), (2, 60))])
def test_pictures_may_have_as_many_pixels_as_stated(
    size: tuple[int, int], shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they come, and as they become when their shorter side is made 9 pixels for squares of 8."""
    photograph = encoded(random_pictures(1, 3, max(size))[0][:, : shape[0], : shape[1]])
    becomes = round(9 / min(size) * max(size)) * 9
    most = max(size[0] * size[1], becomes)
    read = lambda: list(decode_pictures([("a.png", lambda: photograph)], Shape(3, 8, resize=True)))  # noqa: E731
    for large in (0, most):
        monkeypatch.setattr(pictures, "LARGE_PIXELS", large)
        monkeypatch.setattr(pictures, "MAX_PIXELS", most)
        (found,) = read()
        assert found.shape == (3, 8, 8)
    monkeypatch.setattr(pictures, "MAX_PIXELS", most - 1)
    with refused("data file a.png: a picture of", f"at most {most - 1:,} pixels are read"):
        read()


def test_rows_of_a_csv_file_may_be_as_long_as_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = b'1,"a\nb",c\n' * 3
    write_files(tmp_path, {"train.csv": rows, "test.csv": rows})
    monkeypatch.setattr(table_files, "MAX_ROW", 10)
    assert list(Csv(columns=2).parts(tmp_path, None)["train"].samples) == ["a\nb c"] * 3
    monkeypatch.setattr(table_files, "MAX_ROW", 9)
    with refused("data file train.csv: a row of more than 9 characters"):
        Csv(columns=2).parts(tmp_path, None)
    monkeypatch.setattr(table_files, "MAX_ROW", 10)
    monkeypatch.setattr(layouts, "MAX_SAMPLES", 2)
    with refused("data file train.csv: more than 2 rows"):
        Csv(columns=2).parts(tmp_path, None)


def test_messages_have_no_character_of_the_file_that_a_terminal_obeys() -> None:
    name = "a\x1b[2J\nb"
    for ask in (lambda: expect(False, name, name), lambda: _fails_with(ValueError(name))):
        with pytest.raises(InputError) as error:
            ask()
        assert "\x1b" not in str(error.value)
        assert "\n" not in str(error.value)
    assert listed([name, "c"]) == "a\\x1b[2J\\x0ab, c"
    assert len(listed(["a" * 1_000])) < 250
    assert len(in_one_line(ValueError("a" * 1_000))) == 200


def _fails_with(error: Exception) -> None:
    with parsing("file"):
        raise error


def test_a_mistake_of_ours_is_not_taken_for_a_damaged_file() -> None:
    with pytest.raises(AssertionError):
        _fails_with(AssertionError())


def test_large_pictures_are_the_same_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    photograph = encoded(random_pictures(1, 3, 50)[0])
    shape = Shape(3, 16, resize=True)
    (usual,) = decode_pictures([("a.png", lambda: photograph)], shape)
    monkeypatch.setattr(pictures, "LARGE_PIXELS", 0)
    (large,) = decode_pictures([("a.png", lambda: photograph)], shape)
    assert np.array_equal(usual, large)

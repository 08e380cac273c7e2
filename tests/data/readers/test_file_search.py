from __future__ import annotations

from pathlib import Path

import pytest

from fedflat.data.readers.file_search import find, plain_files
from support.files import refused, write_files, write_tar, write_zip, zipped

CONTENT = {"one": b"first" * 100, "two": b"second"}


def read(folder: Path, names: list[str] | None = None) -> dict[str, bytes] | None:
    found = find(folder, names or list(CONTENT))
    return found and {name: content() for name, content in found.items()}


def test_plain_files_are_found_in_subfolders_and_hidden_ones_are_not(tmp_path: Path) -> None:
    write_files(tmp_path, {"b/c/one": b"1", "two": b"2", ".git/one": b"no", "b/.hidden": b"no"})
    assert plain_files(tmp_path) == [tmp_path / "b" / "c" / "one", tmp_path / "two"]
    assert read(tmp_path) == {"one": b"1", "two": b"2"}


def test_zipped_files_are_unzipped(tmp_path: Path) -> None:
    write_files(tmp_path, {"one.gz": zipped(CONTENT["one"]), "raw/two": CONTENT["two"]})
    assert read(tmp_path) == CONTENT


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tar.gz", "w:gz"), ("a.tgz", "w:gz")])
def test_archives_are_read_without_unpacking(tmp_path: Path, name: str, mode: str) -> None:
    write_tar(tmp_path / name, {f"folder/{key}": content for key, content in CONTENT.items()}, mode)
    assert read(tmp_path) == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_zipped_files_inside_zip_archives(tmp_path: Path) -> None:
    """As EMNIST is published."""
    write_zip(tmp_path / "gzip.zip", {f"gzip/{key}.gz": zipped(content) for key, content in CONTENT.items()})
    assert read(tmp_path) == CONTENT


def test_files_of_several_archives_are_put_together(tmp_path: Path) -> None:
    write_zip(tmp_path / "a.zip", {"one": CONTENT["one"]})
    write_tar(tmp_path / "b.tar.gz", {"two": CONTENT["two"]})
    assert read(tmp_path) == CONTENT


def test_unpacked_files_come_before_those_of_archives(tmp_path: Path) -> None:
    write_files(tmp_path, CONTENT)
    (tmp_path / "broken.tar.gz").write_bytes(b"no archive, and not looked at")
    assert read(tmp_path) == CONTENT


def test_nothing_there_is_not_an_error(tmp_path: Path) -> None:
    write_files(tmp_path, {"three": b""})
    write_zip(tmp_path / "a.zip", {"four": b""})
    assert read(tmp_path) is None


def test_some_missing(tmp_path: Path) -> None:
    write_files(tmp_path, {"one": b""})
    with refused(str(tmp_path), "two", "1 of 3 are missing"):
        find(tmp_path, ["one", "one", "two"])


def test_truncated_gzip(tmp_path: Path) -> None:
    write_files(tmp_path, {"one.gz": zipped(CONTENT["one"])[:-9], "two": b""})
    with refused("data file one", "truncated"):
        read(tmp_path)


def test_damaged_gzip(tmp_path: Path) -> None:
    whole = bytearray(zipped(bytes(range(256)) * 8))
    whole[40:60] = bytes(20)
    write_files(tmp_path, {"one.gz": bytes(whole), "two": b""})
    with refused("data file one", "damaged"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar", "a.zip"])
def test_not_an_archive(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"<html>\nnot found\n</html>\n" * 100)
    with refused(str(tmp_path / name), "not a readable archive"):
        read(tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_truncated_tar(tmp_path: Path, mode: str) -> None:
    noise = bytes((i * i * 7 + i // 3) % 251 for i in range(60_000))
    path = write_tar(tmp_path / "a.tar.gz", {"one": noise, "two": noise}, mode)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with refused(str(path), "not a readable archive"):
        read(tmp_path)


def test_truncated_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", CONTENT)
    path.write_bytes(path.read_bytes()[:-30])
    with refused(str(path), "not a readable archive"):
        read(tmp_path)


def test_damaged_file_inside_a_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", CONTENT)
    content = bytearray(path.read_bytes())
    content[35:42] = bytes(7)  # in the packed bytes of the first file
    path.write_bytes(bytes(content))
    with refused("data file one", "damaged"):
        read(tmp_path)


def test_encrypted_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", CONTENT)
    content = bytearray(path.read_bytes())
    content[6] |= 1  # the flag in the first file's header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    path.write_bytes(bytes(content))
    with refused("data file one", "encrypted"):
        read(tmp_path)

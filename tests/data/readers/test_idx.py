from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from fedflat.data.readers.layouts import Idx, Shape
from support.files import idx, random_labels, random_pictures, refused, write_files, write_zip, zipped

GREY = Shape(channels=1, size=28)
X, Y = random_pictures(7), random_labels(7, classes=62)
TEST_X, TEST_Y = random_pictures(3, seed=1), random_labels(3, classes=62, seed=1)


def files(prefix: str = "", test: str = "t10k", transposed: bool = False) -> dict[str, bytes]:
    axes = (0, 2, 1) if transposed else (0, 1, 2)
    return {
        f"{prefix}train-images-idx3-ubyte": idx(X[:, 0].transpose(axes)),
        f"{prefix}train-labels-idx1-ubyte": idx(Y),
        f"{prefix}{test}-images-idx3-ubyte": idx(TEST_X[:, 0].transpose(axes)),
        f"{prefix}{test}-labels-idx1-ubyte": idx(TEST_Y),
    }


def check(parts) -> None:
    for part, x, y in (("train", X, Y), ("test", TEST_X, TEST_Y)):
        assert np.array_equal(np.stack(list(parts[part].samples)), x)
        assert np.array_equal(parts[part].labels, y)
        assert parts[part].labels.dtype == np.int64


def test_plain(tmp_path: Path) -> None:
    write_files(tmp_path, files())
    check(Idx().parts(tmp_path, GREY))


def test_zipped_in_a_subfolder(tmp_path: Path) -> None:
    write_files(tmp_path, {f"MNIST/raw/{name}.gz": zipped(content) for name, content in files().items()})
    check(Idx().parts(tmp_path, GREY))


def test_emnist_is_transposed_and_in_an_archive(tmp_path: Path) -> None:
    emnist = files("emnist-byclass-", "test", transposed=True)
    others = {name.replace("byclass", "letters"): b"" for name in emnist}
    content = {f"gzip/{name}.gz": zipped(content) for name, content in (emnist | others).items()}
    write_zip(tmp_path / "gzip.zip", content)
    check(Idx(prefix="emnist-byclass-", test="test", transposed=True).parts(tmp_path, GREY))


def test_other_files(tmp_path: Path) -> None:
    write_files(tmp_path, {"train-labels.txt": b""})
    assert Idx().parts(tmp_path, GREY) is None


def damaged(name: str, content: bytes) -> dict[str, bytes]:
    return files() | {name: content}


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (IMAGES, b"", "shorter than its header"),
        (IMAGES, idx(X[:, 0])[:15], "shorter than its header"),
        (IMAGES, idx(X[:, 0])[:-1], f"truncated: {7 * 784 - 1} bytes of {7 * 784}"),
        (IMAGES, idx(X[:, 0]) + b"\0", f"{7 * 784 + 1} bytes of {7 * 784}"),
        (LABELS, idx(Y)[:-1], "truncated: 6 bytes of 7"),
        (IMAGES, struct.pack(">HBB", 0, 13, 3) + idx(X[:, 0])[4:], "not an idx file of bytes with 3 dimension(s)"),
        (IMAGES, struct.pack(">HBB", 1, 8, 3) + idx(X[:, 0])[4:], "not an idx file of bytes"),
        (LABELS, idx(X[:, 0]), "not an idx file of bytes with 1 dimension(s)"),
        (IMAGES, b"<!DOCTYPE html>\n<html>\n</html>\n", "not an idx file of bytes"),
        (LABELS, idx(Y[:5]), "7 images, but train-labels-idx1-ubyte has 5 labels"),
        (IMAGES, idx(random_pictures(7, size=30)[:, 0]), "pictures of 30 x 30, expected 28 x 28"),
        (IMAGES, idx(random_pictures(7, size=1)[:, 0]), "pictures of 1 x 1, expected 28 x 28"),
        (IMAGES, idx(X[:, 0, :, :27]), "pictures of 28 x 27, expected 28 x 28"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    write_files(tmp_path, damaged(name, content))
    named = IMAGES if "images" in problem or "pictures" in problem else name
    with refused(f"data file {named}", problem):
        Idx().parts(tmp_path, GREY)


@pytest.mark.parametrize("name", sorted(files()))
def test_a_missing_companion_is_named(tmp_path: Path, name: str) -> None:
    write_files(tmp_path, {other: content for other, content in files().items() if other != name})
    with refused(f"has no file {name} (1 of 4 are missing)"):
        Idx().parts(tmp_path, GREY)

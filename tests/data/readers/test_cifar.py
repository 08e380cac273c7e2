from __future__ import annotations

import builtins
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedflat.data.readers.array_files import BinaryBatches, PythonBatches
from fedflat.data.readers.layouts import Shape
from support.files import (
    pickled,
    pickled_by_python_2,
    random_labels,
    random_pictures,
    refused,
    write_files,
    write_tar,
)

COLOUR = Shape(channels=3, size=32)
PYTHON = PythonBatches(train=("data_batch_1", "data_batch_2"), test=("test_batch",))
SIZES = {"data_batch_1": 3, "data_batch_2": 2, "test_batch": 4}
X = {name: random_pictures(n, 3, 32, seed) for seed, (name, n) in enumerate(SIZES.items())}
Y = {name: random_labels(n, seed=seed) for seed, (name, n) in enumerate(SIZES.items())}


def batch(name: str, label: str = "labels") -> dict[str, Any]:
    return {"batch_label": [], label: Y[name].tolist(), "data": X[name].reshape(len(X[name]), -1)}


def check(parts) -> None:
    for part, names in (("train", ["data_batch_1", "data_batch_2"]), ("test", ["test_batch"])):
        assert np.array_equal(np.stack(list(parts[part].samples)), np.concatenate([X[name] for name in names]))
        assert np.array_equal(parts[part].labels, np.concatenate([Y[name] for name in names]))
        assert parts[part].labels.dtype == np.int64


@pytest.mark.parametrize("protocol", [2, 3, 4, pickle.HIGHEST_PROTOCOL])
@pytest.mark.parametrize("keys", [str, bytes])
def test_python_batches(tmp_path: Path, protocol: int, keys: type) -> None:
    for name in SIZES:
        named = {key.encode() if keys is bytes else key: value for key, value in batch(name).items()}
        write_files(tmp_path, {f"cifar-10-batches-py/{name}": pickled(named, protocol)})
    check(PYTHON.parts(tmp_path, COLOUR))


def test_python_batches_that_cannot_be_written_to(tmp_path: Path) -> None:
    for name in SIZES:
        frozen = batch(name)
        frozen["data"].flags.writeable = False
        write_files(tmp_path, {name: pickled(frozen)})
    check(PYTHON.parts(tmp_path, COLOUR))


def test_python_batches_in_the_published_archive(tmp_path: Path) -> None:
    """Written by Python 2, as the ones of 2009 were."""
    folder = "cifar-10-batches-py"
    files = {f"{folder}/{name}": pickled_by_python_2(batch(name)) for name in SIZES}
    assert pickle.loads(files[f"{folder}/test_batch"], encoding="latin1")["labels"] == Y["test_batch"].tolist()
    write_tar(tmp_path / "cifar-10-python.tar.gz", files | {f"{folder}/batches.meta": b"not read"})
    check(PYTHON.parts(tmp_path, COLOUR))


def test_fine_labels(tmp_path: Path) -> None:
    names = ("train", "test")
    for name, like in zip(names, SIZES, strict=False):
        write_files(tmp_path, {name: pickled(batch(like, "fine_labels") | {"coarse_labels": [0] * SIZES[like]})})
    parts = PythonBatches(train=("train",), test=("test",), label="fine_labels").parts(tmp_path, COLOUR)
    assert np.array_equal(parts["train"].labels, Y["data_batch_1"])
    assert np.array_equal(parts["test"].samples, X["data_batch_2"])


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self._call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", ["system", "eval", "fromfile"])
def test_a_batch_that_names_anything_else_is_refused_and_not_run(tmp_path: Path, function: str, protocol: int) -> None:
    marker = tmp_path / "it ran"
    calls = {
        "system": Calls(os.system, f"touch '{marker}'"),
        "eval": Calls(builtins.eval, f"__import__('pathlib').Path({str(marker)!r}).touch()"),
        "fromfile": Calls(np.memmap, str(marker), "uint8", "w+", 0, (1,)),  # numpy's own can do harm, too
    }
    content = pickle.dumps({"labels": [0], "data": calls[function]}, protocol)
    write_files(tmp_path, {name: pickled(batch(name)) for name in SIZES} | {"data_batch_2": content})
    with refused("data file data_batch_2", "which no batch needs"):
        PYTHON.parts(tmp_path, COLOUR)
    assert not marker.exists()
    pickle.loads(content)
    assert marker.exists(), "or this test shows nothing"


def test_a_name_with_a_line_break_makes_no_second_line(tmp_path: Path) -> None:
    content = b"\x80\x04\x8c\x04o\ns.\x8c\x06system\x93."
    write_files(tmp_path, dict.fromkeys(SIZES, content))
    with refused("data file data_batch_1", "which no batch needs"):
        PYTHON.parts(tmp_path, COLOUR)


def wrong(changes: dict[str, Any]) -> bytes:
    return pickled({key: value for key, value in (batch("data_batch_2") | changes).items() if value is not None})


ROWS = X["data_batch_2"].reshape(2, -1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "truncated or not a CIFAR batch"),
        (b"<html>\n\n</html>", "truncated or not a CIFAR batch"),
        (wrong({})[:3000], "truncated"),
        (wrong({})[:-1], "truncated"),
        (pickle.dumps([1, 2]), "not a CIFAR batch"),
        (wrong({"labels": [2**80, 1]}), "'labels' has one that is no class number"),
        (wrong({"labels": [-1, 1]}), "'labels' has one that is no class number"),
        (b"\x80\x02]r\x00\x00\x00\x10.", "more parts than any batch"),
        (b"\x80\x02})" + b"\x85" * 2_000 + b"K\x00s.", "more parts than any batch"),
        (wrong({"data": None}), "has no 'data'"),
        (wrong({"labels": None}), "has no 'labels'"),
        (wrong({"labels": 7}), "has no 'labels', or not as CIFAR has it"),
        (wrong({"labels": Y["data_batch_2"]}), "has no 'labels', or not as CIFAR has it"),
        (wrong({"labels": ["cat", "dog"]}), "'labels' are not all whole numbers"),
        (wrong({"data": [1, 2]}), "has no 'data', or not as CIFAR has it"),
        (wrong({"labels": [1]}), f"{2 * 3072} bytes of pixels for 1 labels"),
        (wrong({"data": ROWS[:1]}), "3072 bytes of pixels for 2 labels"),
        (wrong({"data": ROWS.astype(np.float32)}), "'data' is not an array of bytes"),
        (wrong({"data": ROWS.view(np.int8)}), "'data' is not an array of bytes"),
        (wrong({"data": np.asfortranarray(ROWS)}), "row after row"),
        (pickle.dumps({"labels": [1, 2], "data": np.asfortranarray(ROWS)}, 2), "row after row"),
    ],
)
def test_damaged_python_batches_are_named(tmp_path: Path, content: bytes, problem: str) -> None:
    write_files(tmp_path, {name: pickled(batch(name)) for name in SIZES} | {"data_batch_2": content})
    with refused("data file data_batch_2", problem):
        PYTHON.parts(tmp_path, COLOUR)


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, {name: pickled(batch(name)) for name in SIZES if name != "data_batch_2"})
    with refused("has no file data_batch_2 (1 of 3 are missing)"):
        PYTHON.parts(tmp_path, COLOUR)


def records(name: str, label_bytes: int) -> bytes:
    coarse = np.full((SIZES[name], label_bytes - 1), 9, np.uint8)
    rows = X[name].reshape(SIZES[name], -1)
    return np.concatenate([coarse, Y[name][:, None].astype(np.uint8), rows], axis=1).tobytes()


def binary(label_bytes: int) -> BinaryBatches:
    return BinaryBatches(train=("data_batch_1", "data_batch_2"), test=("test_batch",), label_bytes=label_bytes)


@pytest.mark.parametrize("label_bytes", [1, 2])
def test_binary_batches(tmp_path: Path, label_bytes: int) -> None:
    write_tar(tmp_path / "cifar-binary.tar.gz", {f"cifar/{name}": records(name, label_bytes) for name in SIZES})
    check(binary(label_bytes).parts(tmp_path, COLOUR))


@pytest.mark.parametrize("cut", [1, 3072, 2 * 3073])
def test_truncated_binary_batches_are_named(tmp_path: Path, cut: int) -> None:
    files = {name: records(name, 1) for name in SIZES}
    write_files(tmp_path, files | {"data_batch_2": files["data_batch_2"][:-cut]})
    with refused("data file data_batch_2", "truncated", "records of 3073"):
        binary(1).parts(tmp_path, COLOUR)


def test_batches_of_others(tmp_path: Path) -> None:
    write_files(tmp_path, {"data.parquet": b""})
    assert PYTHON.parts(tmp_path, COLOUR) is None
    assert binary(1).parts(tmp_path, COLOUR) is None

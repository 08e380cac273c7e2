"""Small data files as their publishers write them, and what a refusal of a damaged one must look like."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedflat.core.errors import InputError

PICTURE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


@contextmanager
def refused(*named: str) -> Iterator[None]:
    """An InputError of one line that has all of `named` in it must be raised inside."""
    with pytest.raises(InputError) as error:
        yield
    message = str(error.value)
    assert len(message.splitlines()) == 1
    for name in named:
        assert name in message


def random_pictures(n: int, channels: int = 1, size: int = 28, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, channels, size, size), dtype=np.uint8)


def random_labels(n: int, classes: int = 10, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, n)


def encoded(picture: np.ndarray, kind: str = "PNG") -> bytes:
    """`picture` (channels, height, width) as the bytes of a file; PNG loses nothing."""
    file = io.BytesIO()
    Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)).save(file, kind)
    return file.getvalue()


def picture_column(pictures: Sequence[np.ndarray | bytes | None]) -> pa.Array:
    """Pictures as the hub keeps them; those that are bytes already, or missing, as they are."""
    contents = [p if p is None or isinstance(p, bytes) else encoded(p) for p in pictures]
    return pa.array([{"bytes": content, "path": f"{i}.png"} for i, content in enumerate(contents)], PICTURE)


def write_parquet(path: Path, columns: Mapping[str, Any], names: Mapping[str, Any] | None = None) -> Path:
    """A file as the hub has it; `names` are those of the classes of a column, by column."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(dict(columns))
    if names is not None:
        features = {column: {"names": some, "_type": "ClassLabel"} for column, some in names.items()}
        described = json.dumps({"info": {"features": {"other": {"dtype": "string"}} | features}})
        table = table.replace_schema_metadata({"huggingface": described})
    pq.write_table(table, path, compression="zstd")
    return path


def write_pictures(
    folder: Path, part: str, pictures: np.ndarray, labels: Sequence[int], image: str = "image", **more: Any
) -> Path:
    """One part of a set of pictures in one parquet file."""
    columns = {image: picture_column(list(pictures)), "label": pa.array(np.asarray(labels)), **more}
    return write_parquet(folder / f"{part}-00000-of-00001.parquet", columns)


def idx(array: np.ndarray) -> bytes:
    """LeCun's format of bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def mnist(folder: Path, n: int = 20, seed: int = 0) -> Path:
    """A small MNIST in idx files."""
    files = {}
    for part, size in (("train", n), ("t10k", 5)):
        files[f"mnist/{part}-images-idx3-ubyte"] = idx(random_pictures(size, seed=seed)[:, 0])
        files[f"mnist/{part}-labels-idx1-ubyte"] = idx(random_labels(size, seed=seed))
    write_files(folder, files)
    return folder


def write_tar(path: Path, files: Mapping[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_zip(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def zipped(content: bytes) -> bytes:
    return gzip.compress(content)


def pickled_by_python_2(batch: Mapping[str, Any]) -> bytes:
    """What Python 2's cPickle and an old numpy write, opcode by opcode; lists of numbers and one array of bytes."""

    def text(value: str | bytes) -> bytes:
        value = value.encode() if isinstance(value, str) else value
        return b"T" + struct.pack("<i", len(value)) + value

    def array(value: np.ndarray) -> bytes:
        kind = b"cnumpy\ndtype\n(" + text("u1") + b"K\x00K\x01tR(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xff"
        kind += b"J\xff\xff\xff\xffK\x00tb"
        shape = b"(" + b"".join(b"J" + struct.pack("<i", side) for side in value.shape) + b"t"
        made = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + text("b") + b"tR"
        return made + b"(K\x01" + shape + kind + b"I00\n" + text(value.tobytes()) + b"tb"

    def numbers(value: Sequence[int]) -> bytes:
        return b"](" + b"".join(b"J" + struct.pack("<i", int(number)) for number in value) + b"e"

    written = [text(key) + (array(v) if isinstance(v, np.ndarray) else numbers(v)) for key, v in batch.items()]
    return b"\x80\x02}(" + b"".join(written) + b"u."


def pickled(batch: Mapping[Any, Any], protocol: int = pickle.HIGHEST_PROTOCOL) -> bytes:
    return pickle.dumps(dict(batch), protocol)

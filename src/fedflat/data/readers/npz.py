"""Arrays of a user's own in `train.npz` and `test.npz`. Nothing is unpickled, and no array is larger than allowed.

An npz file is a zip of npy files. Each is read into memory within the limits for members of archives; its header is
compared with the number of bytes that follow before they become an array.
"""

from __future__ import annotations

import io
import tokenize
import warnings
import zipfile
from math import prod
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from ..labels import values_of
from ..numbers import Array, stored
from .file_search import open_zip, read_zip_member
from .layouts import CHANNELS, Part
from .untrusted_files import MAX_MEMBERS, MAX_SAMPLES, expect, listed, parsing

NAMES = ("x", "y", "domain", "user")
MAX_AXES = 8
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def npz_files(folder: Path) -> dict[str, Path]:
    """Return the files of the parts that are in `folder` itself."""
    return {part: folder / f"{part}.npz" for part in ("train", "test") if (folder / f"{part}.npz").is_file()}


def read_npz(path: Path) -> Part:
    """Read one file: x (n, *shape), y (n,) numbers or texts, or (n, k) numbers, domain and user (n,).

    The last two need not be there.

    Raises InputError, naming file and array, for anything else.
    """
    with parsing(str(path), "not a readable npz file"):
        arrays = _arrays(path)
    for name in ("x", "y"):
        expect(name in arrays, str(path), f"has no array {name!r}; x and y are needed")
    x, y = arrays["x"], arrays["y"]
    expect(x.dtype.kind not in "SU", str(path), "x has texts; give token numbers, or texts in a parquet file")
    expect(x.ndim >= 2 and len(x) > 0, str(path), f"x has shape {x.shape}, expected (n, ...)")
    expect(len(x) <= MAX_SAMPLES, str(path), f"x has {len(x):,} samples; at most {MAX_SAMPLES:,} are read")
    expect(y.shape[:1] == (len(x),) and y.ndim <= 2, str(path), f"y has shape {y.shape}, expected ({len(x)},)")
    groups = {name: _names(path, name, arrays[name], len(x)) for name in ("domain", "user") if name in arrays}
    return Part(y, _samples(path, x), groups.get("domain"), groups.get("user"))


def read_samples(path: Path) -> Array:
    """Read the array x (n, *shape) of a file that need not have labels. Raises InputError as `read_npz` does."""
    with parsing(str(path), "not a readable npz file"):
        arrays = _arrays(path)
    expect("x" in arrays and arrays["x"].ndim >= 2, str(path), "has no array 'x' of shape (n, ...)")
    return _samples(path, arrays["x"])


def _arrays(path: Path) -> dict[str, Array]:
    """Read the arrays that have a meaning here; others in the file are not read."""
    with open_zip(path) as archive:
        members = archive.infolist()
    expect(len(members) <= MAX_MEMBERS, str(path), f"more than {MAX_MEMBERS:,} arrays")
    named = {member.filename.removesuffix(".npy"): member for member in members}
    expect(len(named) == len(members), str(path), "has an array twice")
    return {name: _array(path, name, named[name]) for name in NAMES if name in named}


def _array(path: Path, name: str, member: zipfile.ZipInfo) -> Array:
    """One array of numbers or texts. Raises InputError for any other, and for one of another size than it claims."""
    content = read_zip_member(path, member)
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    expect(version in HEADERS, str(path), f"{name} is of an unknown version of the npy format")
    shape, columns_first, kind = _header(version, stream)
    expect(kind.kind in "biufU" and kind.itemsize > 0, str(path), f"{name} holds {kind}, expected numbers")
    expect(len(shape) <= MAX_AXES and min(shape, default=1) >= 0, str(path), f"{name} has shape {listed([str(shape)])}")
    size = len(content) - stream.tell()
    fits = prod(shape) * kind.itemsize == size
    expect(fits, str(path), f"{name} says that it has shape {listed([str(shape)])} of {kind}, but has {size:,} bytes")
    flat = np.frombuffer(content, kind, offset=stream.tell())
    return flat.reshape(shape, order="F" if columns_first else "C")


def _header(version: tuple[int, int], stream: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, order and type of an array. Raises ValueError for a malformed header."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy repairs headers that Python 2 wrote, and says so
            return HEADERS[version](stream)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError("its header cannot be read") from error


def _samples(path: Path, x: Array) -> Array:
    """Convert samples to a type that is stored."""
    last = x.dtype == np.uint8 and x.ndim == 4 and x.shape[-1] in CHANNELS and x.shape[1] not in CHANNELS
    expect(not last, str(path), f"x has shape {x.shape}; pictures are (n, channels, height, width)")
    return stored(x, f"data file {path}: x")


def _names(path: Path, group: str, values: Array, number: int) -> list[str | int]:
    """Return the domain or user of each sample."""
    expect(values.shape == (number,), str(path), f"{group} has shape {values.shape}, expected ({number},)")
    found: list[str | int] = values_of(values, f"data file {path}: {group}").tolist()
    return found

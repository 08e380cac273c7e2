"""Small valid files of every layout, damaged at random: what comes is InputError in one line, or a set."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedflat as ff
from fedflat.core.errors import InputError, printable
from support.effort import effort
from support.files import (
    encoded,
    pickled,
    pickled_by_python_2,
    picture_column,
    random_labels,
    random_pictures,
    write_files,
    write_parquet,
    write_tar,
    write_zip,
    zipped,
)
from support.hostile_data import batch, cifar10, mnist, news, photographs

N = 12
END = 2_000  # bytes in which zip and parquet say what is in a file


def records() -> dict[str, bytes]:
    """CIFAR's binary version."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    rows = [np.concatenate([random_labels(2)[:, None], random_pictures(2, 3, 32).reshape(2, -1)], axis=1)] * 6
    return {name: some.astype(np.uint8).tobytes() for name, some in zip(names, rows, strict=True)}


def parquet(folder: Path, **columns) -> None:
    for part in ("train", "test"):
        write_parquet(folder / f"{part}.parquet", columns, {"label": [str(i) for i in range(10)]})


def images(size: int = 28, channels: int = 1, **more) -> dict:
    return {"image": picture_column(list(random_pictures(N, channels, size)))} | more


LAYOUTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "idx": ("mnist", lambda f: write_files(f, mnist())),
    "idx, gzip": ("mnist", lambda f: write_files(f, {f"{name}.gz": zipped(c) for name, c in mnist().items()})),
    "idx, zip": ("mnist", lambda f: write_zip(f / "a.zip", mnist())),
    "idx, gzip in zip": ("mnist", lambda f: write_zip(f / "a.zip", {f"{n}.gz": zipped(c) for n, c in mnist().items()})),
    "pictures, parquet": ("mnist", lambda f: parquet(f, **images(label=random_labels(N)))),
    "writers, parquet": (
        "femnist",
        lambda f: parquet(f, **images(character=random_labels(N), writer_id=["a", "b"] * (N // 2))),
    ),
    "photographs, parquet": (
        "pacs",
        lambda f: parquet(f, **images(8, 3, label=random_labels(N, 7), domain=["photo", "sketch"] * (N // 2))),
    ),
    "texts, parquet": ("ag_news", lambda f: parquet(f, text=["one two", "three"], label=[0, 3])),
    "python batches": ("cifar10", lambda f: write_files(f, cifar10())),
    "batches of Python 2": (
        "cifar10",
        lambda f: write_files(f, dict.fromkeys(cifar10(), pickled_by_python_2(batch()))),
    ),
    "batches of protocol 0": ("cifar10", lambda f: write_files(f, dict.fromkeys(cifar10(), pickled(batch(), 0)))),
    "python batches, tar": ("cifar10", lambda f: write_tar(f / "a.tar.gz", cifar10())),
    "binary batches, tar": ("cifar10", lambda f: write_tar(f / "a.tar", records(), "w")),
    "csv": ("ag_news", lambda f: write_files(f, news('"1","a, ""b""","c"\n2,d,e\n' * 5))),
    "photographs, folders": ("pacs", lambda f: write_files(f, photographs())),
    "photographs, JPEG": ("pacs", lambda f: write_files(f, _of_kind("JPEG"))),
    "photographs, WebP": ("pacs", lambda f: write_files(f, _of_kind("WEBP"))),
    "photographs, BMP": ("pacs", lambda f: write_files(f, _of_kind("BMP"))),
}


def _of_kind(kind: str) -> dict[str, bytes]:
    return dict.fromkeys(photographs(), encoded(random_pictures(1, 3, 20)[0], kind))


def damaged(content: bytes, rng: random.Random) -> bytes:
    """`content` with one to eight changes: bits flipped, bytes set, cut off, put in, doubled or taken out."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        first = max(len(changed) - END, 0) if rng.randrange(3) == 0 else 0
        place = rng.randrange(first, len(changed) + 1)
        length = rng.choice((1, 2, 4, 8, 64, 1024))
        match rng.randrange(7):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                changed[place : place + length] = rng.randbytes(len(changed[place : place + length]))
            case 2:
                del changed[place:]
            case 3:
                changed[place:place] = rng.randbytes(length)
            case 4:
                changed[place:place] = changed[place : place + length]
            case 5:
                del changed[place : place + length]
            case 6:
                size = len(changed[place : place + 4])
                changed[place : place + 4] = rng.choice((b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff"))[:size]
    return bytes(changed)


@pytest.fixture(scope="module", params=LAYOUTS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A set's name, and a folder that has its files."""
    name, write = LAYOUTS[request.param]
    folder = tmp_path_factory.mktemp("whole")
    (folder / name).mkdir()
    write(folder / name)
    return name, folder


def load(name: str, folder: Path) -> None:
    loaded = ff.data.prepare(name, str(folder), partial=True, image_size=8 if name == "pacs" else None)
    for part in (loaded.train, loaded.test):
        if part is not None:
            assert len(part.x) == len(part.y) > 0
            assert 0 <= int(part.y.min()) <= int(part.y.max()) < loaded.classes


def refusal(name: str, folder: Path) -> str | None:
    """What is said of files that are refused; None if they give a set."""
    try:
        load(name, folder)
    except InputError as error:
        return str(error)
    return None


def test_whole_files_are_read(whole: tuple[str, Path]) -> None:
    load(*whole)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(
    max_examples=effort(25, 2_000),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**64))
def test_damaged_files_are_named_or_give_a_set(whole: tuple[str, Path], cache: Path, seed: int) -> None:
    name, folder = whole
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary)
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        path = rng.choice(sorted(path for path in copy.rglob("*") if path.is_file()))
        path.write_bytes(damaged(path.read_bytes(), rng))
        said = refusal(name, copy)
        assert said is None or (said.startswith("data") and printable(said) == said)
    shutil.rmtree(cache, ignore_errors=True)

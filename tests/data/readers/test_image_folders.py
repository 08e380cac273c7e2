from __future__ import annotations

from pathlib import Path

import numpy as np

from fedflat.data.readers.layouts import Shape
from fedflat.data.readers.picture_folders import ImageFolders
from support.files import encoded, random_pictures, refused, write_files

LAYOUT = ImageFolders(domains=("art", "real world"))
SHAPE = Shape(channels=3, size=16, resize=True)
PICTURES = random_pictures(5, 3, 16)
PLACES = ["art/cat/1.png", "art/cat/2.PNG", "art/dog/1.png", "real world/ant/9.png", "real world/dog/1.png"]


def files(below: str = "") -> dict[str, bytes]:
    return {f"{below}{place}": encoded(picture) for place, picture in zip(PLACES, PICTURES, strict=True)}


def test_domains_and_classes_by_the_names_of_folders(tmp_path: Path) -> None:
    """Classes are numbered over all domains, by name."""
    others = {"art/cat/Thumbs.db": b"", "art/cat/.hidden.png": b"", "readme.png": b"", "photo/cat/1.png": b"broken"}
    write_files(tmp_path, files() | others)
    part = LAYOUT.parts(tmp_path, SHAPE)["train"]
    assert part.labels.tolist() == [1, 1, 2, 0, 2]
    assert part.domain == ["art", "art", "art", "real world", "real world"]
    assert np.array_equal(np.stack(list(part.samples)), PICTURES)


def test_below_one_more_folder(tmp_path: Path) -> None:
    write_files(tmp_path, files("OfficeHome/raw/"))
    assert LAYOUT.parts(tmp_path, SHAPE)["train"].labels.tolist() == [1, 1, 2, 0, 2]


def test_other_files(tmp_path: Path) -> None:
    write_files(tmp_path, {"photo/cat/1.png": b"", "cat/1.png": b"", "art/cat/1.txt": b""})
    assert LAYOUT.parts(tmp_path, SHAPE) is None


def test_a_missing_domain_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, {"art/cat/1.png": b""})
    with refused(str(tmp_path), "has no pictures of domain real world"):
        LAYOUT.parts(tmp_path, SHAPE)


def test_a_broken_picture_is_named_by_its_path(tmp_path: Path) -> None:
    write_files(tmp_path, files() | {"art/dog/1.png": b"broken"})
    part = LAYOUT.parts(tmp_path, SHAPE)["train"]
    with refused(str(tmp_path / "art/dog/1.png"), "not a readable picture"):
        list(part.samples)

"""Pictures of a user's own in class folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedflat as ff
from fedflat.data.stated_schema import colour_statistics
from support.files import random_pictures, refused


def save(path: Path, picture: np.ndarray) -> Path:
    """Write one picture, uint8 (channels, height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)).save(path)
    return path


def folders(root: Path, place: str = "{part}/{name}", names: str = "cat dog ox", channels: int = 3, n: int = 4) -> Path:
    for seed, name in enumerate(names.split()):
        for part in ("train", "test"):
            for i, picture in enumerate(random_pictures(n, channels, size=8, seed=seed)):
                save(root / place.format(part=part, name=name) / f"{i}.png", picture)
    return root


def load(folder: Path, clients: int = 2, **options) -> ff.FederatedData:
    return ff.data.load("folder", clients=clients, data_dir=str(folder), **options)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_folder_of_a_picture_is_its_class(tmp_path: Path, channels: int) -> None:
    data = load(folders(tmp_path, channels=channels))
    assert (data.class_names, data.shape) == (("cat", "dog", "ox"), (channels, 8, 8))
    expected = np.concatenate([random_pictures(4, channels, size=8, seed=seed) for seed in range(3)])
    assert torch.equal(data.x, torch.from_numpy(expected))
    assert data.y.tolist() == data.test[1].tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("place", ["{part}/SITE/{name}", "SITE/{part}/{name}"])
def test_a_folder_around_the_classes_is_a_client(tmp_path: Path, place: str) -> None:
    folders(tmp_path, place.replace("SITE", "north"))
    folders(tmp_path, place.replace("SITE", "south"), names="cat ox")
    data = load(tmp_path, partition=ff.Natural())
    assert data.counts().tolist() == [[4, 4, 4], [4, 0, 4]]


def test_a_site_without_a_class_numbers_the_others_as_the_study_does(tmp_path: Path) -> None:
    data = load(folders(tmp_path, names="cat ox"), clients=1, class_names=("cat", "dog", "ox"))
    assert data.counts().tolist() == [[4, 0, 4]]


def test_colours_are_scaled_as_stated(tmp_path: Path) -> None:
    data = load(folders(tmp_path), means=[0.5, 0.25, 0.125], deviations=[0.5, 0.25, 0.5])
    pixels = data.x[:2].double() / 255
    centre, width = (torch.tensor(some)[:, None, None] for some in ([0.5, 0.25, 0.125], [0.5, 0.25, 0.5]))
    assert torch.allclose(data.inputs(torch.arange(2)).double(), (pixels - centre) / width, atol=1e-6)


def test_statistics_of_colours_are_those_of_all_pixels() -> None:
    x = torch.from_numpy(random_pictures(2500, 3, size=8))
    mean, deviation = colour_statistics(x)
    pixels = x.double() / 255
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist())
    assert deviation == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist())
    assert colour_statistics(torch.full((3, 1, 2, 2), 51, dtype=torch.uint8)) == ((0.2,), (1.0,))


def test_without_a_test_folder_a_tenth_is_held_out(tmp_path: Path) -> None:
    for part in ("train", "test"):
        folders(tmp_path / part, "{name}", n=20)
    (tmp_path / "train").rename(tmp_path / "pictures")
    data = load(tmp_path / "pictures")
    assert (len(data.y), len(data.test[1])) == (54, 6)


def grey(folder: Path) -> None:
    save(folder / "train" / "cat" / "9.png", random_pictures(1, 1, size=8)[0])


def larger(folder: Path) -> None:
    save(folder / "train" / "cat" / "9.png", random_pictures(1, 3, size=9)[0])


def oblong(folder: Path) -> None:
    save(folder / "train" / "cat" / "0.png", random_pictures(1, 3, size=9)[0][:, :8])


def new_class(folder: Path) -> None:
    save(folder / "test" / "eel" / "0.png", random_pictures(1, 3, size=8)[0])


BAD: dict[str, tuple[Callable[[Path], object], dict, str]] = {
    "a grey picture among coloured ones": (grey, {}, "a grey picture, but"),
    "a picture of another size": (larger, {}, "a picture of (9, 9), expected 8 x 8"),
    "pictures that are not square": (oblong, {}, "has 9 x 8 pixels; set data.image_size"),
    "a picture outside class folders": (lambda f: save(f / "train" / "0.png", random_pictures(1, 3, size=8)[0]), {},
                                        "is in no class folder; expected train/CLASS/picture.png"),
    "no picture": (lambda f: (f / "train" / "cat" / "9.png").write_text("<html>"), {}, "9.png: not a readable picture"),
    "test only": (lambda f: (f / "train").rename(f / "test" / "more"), {}, "has files for test, and none for training"),
    "a class with test pictures only": (new_class, {}, "'eel', which is none of the training labels"),
    "other colours than stated": (lambda f: None, {"channels": 1}, "but what data.channels states is grey"),
    "a scale for another number of colours": (lambda f: None, {"means": [0.5], "deviations": [0.5]},
                                              "data.means has 1 numbers, and the pictures 3 colour(s)"),
    "columns": (lambda f: None, {"label_columns": "y"}, "data.label_columns = ('y',) has no use with pictures"),
    "texts": (lambda f: None, {"text_length": 8}, "data.text_length = 8 goes with texts"),
    "another class than stated": (lambda f: None, {"class_names": ["cat", "ox"]}, "'dog', which is none of class_"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_folder_is_one_line(tmp_path: Path, name: str) -> None:
    change, options, words = BAD[name]
    change(folders(tmp_path))
    with refused(words):
        load(tmp_path, **options)


def test_an_empty_folder_says_what_it_should_hold(tmp_path: Path) -> None:
    with refused("has no files of folder; it should hold train/CLASS/*.png"):
        load(tmp_path)

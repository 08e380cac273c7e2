"""The same picture gives the same numbers at every door, and they are those of the rules in docs/data.md."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data import prepare
from fedflat.data.own_data import own_dataset
from fedflat.data.readers import pictures
from fedflat.data.readers.layouts import Shape
from fedflat.data.readers.pictures import decode_pictures
from support.files import refused, write_files, write_parquet

SIDE = 8
RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)
COLOURS = RNG.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 2**16, (SIDE, SIDE), dtype=np.uint16)
BITS = RNG.integers(0, 2, (SIDE, SIDE)).astype(bool)
INDICES = RNG.integers(0, 4, (SIDE, SIDE), dtype=np.uint8)
PALETTE = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 90, 200]], dtype=np.uint8)
OPAQUE, HALF = np.full((SIDE, SIDE), 255, np.uint8), np.full((SIDE, SIDE), 128, np.uint8)
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {  # by EXIF's tag 274: where row 0 and column 0 are
    1: lambda x: x,
    2: np.fliplr,
    3: lambda x: np.rot90(x, 2),
    4: np.flipud,
    5: lambda x: x.swapaxes(0, 1),
    6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(x, 2).swapaxes(0, 1),
    8: np.rot90,
}


class Items(Dataset):
    def __init__(self, items: Sequence[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> object:
        return self.items[i]


class Rows(list):
    """A dataset that gives rows as dictionaries, as `datasets.Dataset` does."""

    column_names = ("image", "label")


def file(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def palette() -> Image.Image:
    image = Image.fromarray(INDICES).convert("P")
    image.putpalette(PALETTE.flatten().tolist())
    image.putdata(INDICES.flatten().tolist())
    return image


def with_alpha(pixels: np.ndarray, alpha: np.ndarray) -> Image.Image:
    image = Image.fromarray(pixels)
    image.putalpha(Image.fromarray(alpha))
    return image


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[274] = orientation
    return file(Image.fromarray(COLOURS), exif=exif)


def red_print() -> Image.Image:
    """A corner of CMYK, whose colour every formula gives alike; of one colour, as JPEG keeps no other whole."""
    return Image.new("CMYK", (SIDE, SIDE), (0, 255, 255, 0))


def parquet(folder: Path, contents: list[bytes]) -> torch.Tensor:
    labels = [i % 2 for i in range(len(contents))]
    write_parquet(folder / "train.parquet", {"image": pa.array(contents, pa.binary()), "label": labels})
    return prepare("parquet", str(folder)).train.x


def folders(folder: Path, contents: list[bytes]) -> torch.Tensor:
    """A known set of photographs, which are converted to colours of its size."""
    files = {f"pacs/{domain}/dog/{i}.png": c for domain in ("art_painting", "cartoon", "photo", "sketch")
             for i, c in enumerate(contents)}  # fmt: skip
    write_files(folder, files)
    return prepare("pacs", str(folder), partial=True, image_size=SIDE).train.x[: len(contents)]


def images(contents: list[bytes]) -> list[Image.Image]:
    return [Image.open(io.BytesIO(content)) for content in contents]


DOORS: dict[str, Callable[[Path, list[bytes]], torch.Tensor]] = {
    "parquet": parquet,
    "class folders": folders,
    "dataset": lambda _, c: ff.FederatedData.split(Items([(x, i % 2) for i, x in enumerate(images(c))]), clients=1).x,
    "columns": lambda _, c: (
        ff.FederatedData.split(
            Rows({"image": x, "label": i % 2} for i, x in enumerate(images(c))), columns=("image", "label"), clients=1
        ).x
    ),
    "list": lambda _, c: ff.FederatedData.split(images(c), np.arange(len(c)) % 2, clients=1).x,
    "clients": lambda _, c: ff.FederatedData.from_clients([(images(c), np.arange(len(c)) % 2)]).x,
    "function": lambda _, c: own_dataset("f", lambda: (images(c), np.arange(len(c)) % 2)).read().train.x,
}

KNOWN: dict[str, tuple[bytes, np.ndarray]] = {
    "grey": (file(Image.fromarray(GREY)), GREY),
    "grey, 16 bits": (file(Image.fromarray(DEEP)), (DEEP // 256).astype(np.uint8)),
    "1 bit": (file(Image.fromarray(BITS)), 255 * BITS.astype(np.uint8)),
    "grey, opaque": (file(with_alpha(GREY, OPAQUE)), GREY),
    "coloured": (file(Image.fromarray(COLOURS)), COLOURS),
    "coloured, opaque": (file(with_alpha(COLOURS, OPAQUE)), COLOURS),
    "WebP": (file(Image.fromarray(COLOURS), "WEBP", lossless=True), COLOURS),
    "palette": (file(palette()), PALETTE[INDICES]),
    "palette, opaque": (file(palette(), transparency=b"\xff\xff\xff\xff"), PALETTE[INDICES]),
    "CMYK": (file(red_print(), "JPEG", quality=100), np.full((SIDE, SIDE, 3), (255, 0, 0), np.uint8)),
} | {f"turned {tag}": (turned(tag), upright(COLOURS)) for tag, upright in UPRIGHT.items()}

REFUSED: dict[str, tuple[bytes, str]] = {
    "transparent": (file(with_alpha(COLOURS, HALF)), "has transparent pixels"),
    "grey, transparent": (file(with_alpha(GREY, HALF)), "has transparent pixels"),
    "palette, transparent": (file(palette(), transparency=0), "has transparent pixels"),
    "one colour transparent": (
        file(Image.fromarray(COLOURS), transparency=tuple(map(int, COLOURS[0, 0]))), "has transparent pixels",
    ),
    "16 bits, one level transparent": (file(Image.fromarray(DEEP), transparency=int(DEEP[0, 0])), "mode I;16"),
    "PNG in motion": (
        file(Image.fromarray(GREY), save_all=True, append_images=[Image.fromarray(GREY.T)]), "has 2 frames",
    ),
    "WebP in motion": (
        file(Image.fromarray(COLOURS), "WEBP", save_all=True, append_images=[Image.fromarray(255 - COLOURS)]),
        "has 2 frames",
    ),
    "cut off": (file(Image.fromarray(COLOURS))[:150], "not a readable picture"),
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_a_picture_has_the_numbers_of_the_rules(tmp_path: Path, door: str) -> None:
    for kind, (content, pixels) in KNOWN.items():
        (tmp_path / kind).mkdir()
        found = DOORS[door](tmp_path / kind, [content, content])
        expected = np.atleast_3d(pixels).transpose(2, 0, 1)
        expected = np.broadcast_to(expected, (3, SIDE, SIDE)) if door == "class folders" else expected
        assert found.dtype == torch.uint8, kind
        assert np.array_equal(found.numpy(), np.stack([expected] * 2)), kind


@pytest.mark.parametrize("door", DOORS)
def test_a_picture_without_certain_numbers_is_named(tmp_path: Path, door: str) -> None:
    whole = file(Image.fromarray(COLOURS))
    for kind, (content, problem) in REFUSED.items():
        (tmp_path / kind).mkdir()
        with refused("data", "1", problem):  # the second picture, by its file, row or place
            DOORS[door](tmp_path / kind, [whole, content])


@pytest.mark.parametrize("door", [name for name in DOORS if name != "class folders"])
def test_grey_and_coloured_pictures_of_ones_own_are_not_mixed(tmp_path: Path, door: str) -> None:
    pair = [file(Image.fromarray(GREY)), file(palette())]
    for i, contents in enumerate((pair, pair[::-1])):
        (tmp_path / str(i)).mkdir()
        with refused("0", "1", "all grey or all coloured" if door != "parquet" else "grey or all coloured"):
            DOORS[door](tmp_path / str(i), contents)


@pytest.mark.parametrize("door", [name for name in DOORS if name != "class folders"])
def test_pictures_of_two_sizes_are_named(tmp_path: Path, door: str) -> None:
    with refused("0", "1", "one size" if door != "parquet" else "a picture of (4, 4), expected 8 x 8 as "):
        DOORS[door](tmp_path, [file(Image.fromarray(some)) for some in (COLOURS, COLOURS[:4, :4])])


def test_a_test_part_of_another_kind_is_named(tmp_path: Path) -> None:
    for part, pixels in (("train", COLOURS), ("test", GREY)):
        write_parquet(tmp_path / f"{part}.parquet", {"image": [file(Image.fromarray(pixels))], "label": [0]})
    with refused("test.parquet", "train.parquet", "grey or all coloured"):
        prepare("parquet", str(tmp_path))


def test_a_photograph_with_a_preview_is_the_photograph() -> None:
    content = file(
        Image.fromarray(np.full_like(COLOURS, 10)), "MPO", save_all=True, append_images=images([KNOWN["WebP"][0]])
    )
    (found,) = decode_pictures([("a.jpg", lambda: content)], Shape(3, SIDE))
    assert np.array_equal(found, np.full((3, SIDE, SIDE), 10))


def test_a_picture_in_memory_may_have_as_many_pixels_as_one_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Items([(Image.fromarray(GREY), 0)])
    monkeypatch.setattr(pictures, "MAX_PIXELS", SIDE * SIDE)
    assert ff.FederatedData.split(pair, clients=1).shape == (1, SIDE, SIDE)
    monkeypatch.setattr(pictures, "MAX_PIXELS", SIDE * SIDE - 1)
    with refused("data: training: sample 0 has 64 pixels; 1 to 63 are read"):
        ff.FederatedData.split(pair, clients=1)


def test_channels_that_come_last_are_not_augmented() -> None:
    x = np.zeros((4, SIDE, SIDE, 3), np.uint8)
    for make in (
        lambda: ff.FederatedData.split(x, np.zeros(4, int), clients=2, augment="crop-flip"),
        lambda: ff.FederatedData.from_clients([(x / 255, np.zeros(4, int))], augment="fl-simulator"),
    ):
        with refused("pictures (n, channels, height, width)", "(4, 8, 8, 3)"):
            make()


def test_clients_of_other_kinds_of_pictures_are_not_mixed() -> None:
    with refused("client 1", "client 0"):
        ff.FederatedData.from_clients([([Image.fromarray(some)], [0]) for some in (GREY, COLOURS)])


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (Image.fromarray(GREY.astype(np.int32)), "has mode I, whose scale is not known"),
        (Image.fromarray(GREY / np.float32(255)), "has mode F, whose scale is not known"),
        (Image.new("LAB", (SIDE, SIDE)), "has mode LAB"),
        (Image.new("L", (0, SIDE)), "has 0 pixels"),
        (
            Image.open(io.BytesIO(file(palette(), "GIF", save_all=True, append_images=[Image.fromarray(GREY)]))),
            "has 2 frames",
        ),
    ],
)  # fmt: skip
def test_pictures_in_memory_of_an_unknown_scale_are_named(image: Image.Image, problem: str) -> None:
    for pair in [(image, 0)], [(image, 0), (image, 1)]:
        with refused("data: training: sample 0 ", problem):
            ff.FederatedData.split(Items(pair), clients=1)


def test_a_picture_is_turned_once_whether_or_not_its_dataset_did_it() -> None:
    (image,) = images([turned(6)])
    pair = Items([(ImageOps.exif_transpose(image), 0), (image.convert("RGB"), 1)])  # as Hugging Face, as torchvision
    data = ff.FederatedData.split(pair, clients=1)
    for found in data.x:
        assert np.array_equal(found.permute(1, 2, 0), UPRIGHT[6](COLOURS))


def test_a_damaged_exif_block_says_nothing() -> None:
    content = file(Image.fromarray(COLOURS), exif=b"Exif\0\0 no exif at all")
    data = ff.FederatedData.split(Items([(Image.open(io.BytesIO(content)), 0)]), clients=1)
    assert np.array_equal(data.x[0].permute(1, 2, 0), COLOURS)


def test_pictures_as_labels_are_refused(tmp_path: Path) -> None:
    picture, mask = Image.fromarray(COLOURS), Image.fromarray(BITS)
    for make in (
        lambda: ff.FederatedData.split(Items([(picture, mask)] * 2), clients=1),
        lambda: ff.FederatedData.split(Items([(picture, Image.fromarray(GREY.astype(np.int32)))]), clients=1),
        lambda: ff.FederatedData.split([picture], [mask], clients=1),
        lambda: ff.FederatedData.split(Items([(picture, 0)]), clients=1, test=Items([(picture, mask)])),
        lambda: ff.FederatedData.from_clients([([picture], [mask])]),
        lambda: ff.FederatedData.split(
            Rows([{"image": picture, "label": mask}]), columns=("image", "label"), clients=1
        ),
    ):  # fmt: skip
        with refused("pictures as labels (masks)", "these are for task='segmentation'"):
            make()
    columns = {"image": [file(picture)], "label": pa.array([file(mask)], pa.binary())}
    write_parquet(tmp_path / "train.parquet", columns)
    with pytest.raises(InputError, match="column 'label' holds binary, expected class numbers"):
        prepare("parquet", str(tmp_path))

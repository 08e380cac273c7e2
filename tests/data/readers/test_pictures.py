from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedflat.data.readers import pictures
from fedflat.data.readers.layouts import Shape
from fedflat.data.readers.pictures import decode_pictures
from support.files import encoded, random_pictures, refused

GREY, COLOUR = Shape(channels=1, size=28), Shape(channels=3, size=32)


def decode(content: bytes, shape: Shape) -> np.ndarray:
    (picture,) = decode_pictures([("a.png", lambda: content)], shape)
    return picture


@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_many_come_back_in_order(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "AT_ONCE", 7)
    originals = random_pictures(30, shape.channels, shape.size)
    named = [(f"{i}.png", lambda picture=picture: encoded(picture)) for i, picture in enumerate(originals)]
    found = list(decode_pictures(named, shape))
    assert np.array_equal(np.stack(found), originals)
    assert {picture.dtype for picture in found} == {np.dtype(np.uint8)}


def test_a_few_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "AT_ONCE", 4)
    content, asked = encoded(random_pictures(1)[0]), []

    def named() -> Iterator:
        for i in range(20):
            asked.append(i)
            yield f"{i}.png", lambda: content

    waiting = decode_pictures(named(), GREY)
    next(waiting)
    assert asked == [0, 1, 2, 3]
    waiting.close()


def test_other_modes_become_the_sets_own() -> None:
    colour = random_pictures(1, 3, 28)[0]
    image = Image.fromarray(colour.transpose(1, 2, 0))
    assert np.array_equal(decode(encoded(colour), GREY)[0], np.asarray(image.convert("L")))
    grey = random_pictures(1, 1, 32)[0]
    assert np.array_equal(decode(encoded(grey), COLOUR), np.repeat(grey, 3, axis=0))
    file = io.BytesIO()
    few = image.quantize(16)
    few.save(file, "PNG")
    assert np.array_equal(decode(file.getvalue(), Shape(3, 28)), np.asarray(few.convert("RGB")).transpose(2, 0, 1))


@pytest.mark.parametrize(("width", "height"), [(227, 227), (300, 200), (200, 301), (40, 50), (64, 65), (7, 640)])
def test_photographs_become_the_centre_of_a_smaller_copy(width: int, height: int) -> None:
    """The shorter side becomes round(64 * 8 / 7) = 73 pixels, and the 64 in the middle are left."""
    photograph = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    shorter = min(width, height)
    smaller = tuple(round(side * 73 / shorter) for side in (width, height))
    copy = np.asarray(Image.fromarray(photograph).resize(smaller, Image.Resampling.BILINEAR))
    left, top = ((side - 64) // 2 for side in smaller)
    expected = copy[top : top + 64, left : left + 64].transpose(2, 0, 1)
    assert expected.shape == (3, 64, 64)
    found = decode(encoded(photograph.transpose(2, 0, 1)), Shape(3, 64, resize=True))
    assert np.array_equal(found, expected)


def test_a_photograph_of_the_right_size_stays_as_it_is() -> None:
    photograph = random_pictures(1, 3, 64)[0]
    assert np.array_equal(decode(encoded(photograph), Shape(3, 64, resize=True)), photograph)


def test_the_usual_size_of_photographs_is_224_of_256() -> None:
    gradient = np.broadcast_to(np.arange(256, dtype=np.uint8), (3, 256, 256)).copy()
    found = decode(encoded(gradient), Shape(3, 224, resize=True))
    assert np.array_equal(found, gradient[:, 16:240, 16:240])


def damaged_pixels() -> bytes:
    content = bytearray(encoded(random_pictures(1)[0]))
    place = content.index(b"IDAT")
    content[place + 100 : place + 300] = b"\xff" * 200
    return bytes(content)


def unknown_chunk() -> bytes:
    """Fails while the pixels are read, after the header was found good."""
    content = bytearray(encoded(random_pictures(1)[0]))
    place = content.index(b"IDAT")
    return bytes(content[:place] + b"\x00\x01\x02\x03" + content[place + 4 :])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>\nnot a picture\n</html>",
        encoded(random_pictures(1)[0])[:-100],
        encoded(random_pictures(1)[0])[:20],
        encoded(random_pictures(1)[0], "JPEG")[:500],
        damaged_pixels(),
        unknown_chunk(),
    ],
    ids=["empty", "text", "cut", "header cut", "jpeg cut", "pixels", "chunk"],
)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_broken_pictures_are_named(content: bytes) -> None:
    with refused("data file a.png: not a readable picture"):
        decode(content, GREY)


def test_a_folder_in_place_of_a_picture_is_named(tmp_path: Path) -> None:
    with refused(f"data file {tmp_path}: not a readable picture"):
        list(decode_pictures([(str(tmp_path), tmp_path.read_bytes)], GREY))


@pytest.mark.parametrize("size", [27, 29])
def test_pictures_of_another_size_are_refused(size: int) -> None:
    with refused("data file a.png", f"({size}, {size}), expected 28 x 28"):
        decode(encoded(random_pictures(1, size=size)[0]), GREY)


def test_a_picture_that_is_not_square_is_refused() -> None:
    with refused("data file a.png", "(28, 14), expected 28 x 28"):
        decode(encoded(random_pictures(1)[0][:, :14]), GREY)

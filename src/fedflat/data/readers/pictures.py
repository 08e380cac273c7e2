"""Decoding of pictures into arrays, several at once."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from math import prod
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...core.errors import InputError, printable
from .layouts import Shape
from .untrusted_files import LARGE_PIXELS, MAX_PIXELS, expect, file_error

Picture = NDArray[np.uint8]
AT_ONCE = 1024  # pictures decoded ahead
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # no others: for PostScript, Pillow would start a program
GREY, COLOURED = ("1", "L", "LA"), ("RGB", "RGBA", "RGBa", "RGBX", "P", "PA", "CMYK", "YCbCr", "HSV")  # modes of Pillow
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
KIND = {1: "grey", 3: "coloured"}  # by the number of channels
ORIENTATION = 0x0112  # number of the tag in EXIF
TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # by the value of this tag: the turn in Pillow that makes it upright
ONE_LARGE = Lock()  # held while a large picture is decoded


def decode_pictures(encoded: Iterable[tuple[str, Callable[[], bytes]]], shape: Shape) -> Iterator[Picture]:
    """Decode pairs (name, function that reads the bytes) to pictures (channels, size, size), on all cores."""
    remaining = iter(encoded)
    with ThreadPoolExecutor() as pool, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # it becomes our own error
        while some := list(islice(remaining, AT_ONCE)):
            for picture in pool.map(partial(_decoded, shape=shape), some):
                if isinstance(picture, InputError):
                    raise picture
                yield picture


def picture_shape(name: str, read: Callable[[], bytes]) -> tuple[int, int, int]:
    """Return channels (1 or 3), width and height of one encoded picture. Raises InputError, naming `name`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with _opened(name, read) as image:
            picture = plain(image, printable(f"data file {name}"))
    return len(picture.getbands()), *picture.size


def pixels(image: Image.Image, what: str) -> Picture:
    """Return the pixels of `image`, uint8 (1 or 3, height, width). Raises InputError as `plain` does."""
    if not 0 < prod(image.size) <= MAX_PIXELS:
        raise InputError(f"{what} has {prod(image.size):,} pixels; 1 to {MAX_PIXELS:,} are read")
    try:
        return _array(plain(image, what)).copy()  # so that it can be written to
    except InputError:
        raise
    except Exception as error:  # its file is decoded only now, and may be damaged
        raise InputError(f"{what} is not a readable picture") from error


def plain(image: Image.Image, what: str) -> Image.Image:
    """Convert `image` to 8 bits, upright, grey (mode L) or coloured (RGB), by the rules of docs/data.md.

    Raises InputError, which begins with `what`, for several frames, transparent pixels and modes without a known scale.
    """
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # a photograph with a preview
        raise InputError(f"{what} has {frames} frames; give single pictures")
    image.load()  # before EXIF is read, which would load a PNG and hide damage in its pixels
    turn = TURNS.get(_orientation(image)) if image.info else None
    picture = _with_eight_bits(image, what)
    return picture if turn is None else picture.transpose(Image.Transpose(turn))


def _orientation(image: Image.Image) -> int:
    """Return the orientation that EXIF states; 1, upright, if the EXIF block cannot be read."""
    with suppress(Exception):
        return int(image.getexif().get(ORIENTATION, 1))
    return 1


def _with_eight_bits(image: Image.Image, what: str) -> Image.Image:
    if image.mode in SIXTEEN_BITS and "transparency" not in image.info:
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode not in GREY + COLOURED:
        raise InputError(f"{what} has mode {image.mode}, whose scale is not known; convert it to L or RGB")
    kind = "L" if image.mode in GREY else "RGB"
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if np.asarray(image.getchannel("A")).min() < 255:
            raise InputError(f"{what} has transparent pixels; put it on a background of one colour")
    return image.convert(kind)


def _decoded(encoded: tuple[str, Callable[[], bytes]], shape: Shape) -> Picture | InputError:
    """Return the picture, or the error: a raised error would keep the bytes in memory until somebody handles it."""
    try:
        return _decode(*encoded, shape)
    except InputError as error:
        return InputError(str(error))


@contextmanager
def _opened(name: str, read: Callable[[], bytes]) -> Iterator[Image.Image]:
    try:
        with Image.open(io.BytesIO(read()), formats=FORMATS) as image:
            yield image
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise file_error(name, f"a picture of more than {MAX_PIXELS:,} pixels") from error
    except Exception as error:  # a damaged picture may fail in any way
        raise file_error(name, "not a readable picture") from error


def _decode(name: str, read: Callable[[], bytes], shape: Shape) -> Picture:
    with _opened(name, read) as image:
        size, resized = image.size, _resized(image.size, shape)
        fits = shape.resize or size == (shape.size, shape.size)
        expected = f"{shape.size} x {shape.size}" + (f" as {shape.first}" if shape.first else "")
        expect(fits, name, f"a picture of {size}, expected {expected}")
        pixels = max(prod(size), prod(resized))
        becomes = "" if size == resized else " that would become one of {:,} x {:,}".format(*resized)
        shown = f"{size[0]:,} x {size[1]:,} pixels{becomes}"
        expect(pixels <= MAX_PIXELS, name, f"a picture of {shown}; at most {MAX_PIXELS:,} pixels are read")
        with ONE_LARGE if pixels > LARGE_PIXELS else nullcontext():
            picture = plain(image, printable(f"data file {name}"))
            found = len(picture.getbands())
            expect(not shape.first or found == shape.channels, name, f"a {KIND[found]} picture, but {shape.first} is "
                   f"{KIND[shape.channels]}; make all pictures of a set grey or all coloured")  # fmt: skip
            return _array(_centre(picture, shape))


def _resized(size: tuple[int, int], shape: Shape) -> tuple[int, int]:
    """Return the size to which a photograph of `size` is resized before its central square is cut out."""
    if not shape.resize or size == (shape.size, shape.size):
        return size
    scale = round(shape.size * 8 / 7) / max(min(size), 1)
    width, height = (max(shape.size, round(side * scale)) for side in size)
    return width, height


def _centre(picture: Image.Image, shape: Shape) -> Image.Image:
    """Resize the shorter side to size * 8 / 7 (256 for 224), and cut out the central square, as FedLESAM does."""
    picture, resized = picture.convert("L" if shape.channels == 1 else "RGB"), _resized(picture.size, shape)
    if picture.size != resized:
        picture = picture.resize(resized, Image.Resampling.BILINEAR)
    left, top = ((side - shape.size) // 2 for side in resized)
    return picture.crop((left, top, left + shape.size, top + shape.size))


def _array(picture: Image.Image) -> Picture:
    """Return the pixels with the channels first."""
    return np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1)

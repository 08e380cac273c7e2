"""Decoding pictures into arrays, several at once."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import islice
from math import prod
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...core.errors import InputError
from .layout import Shape
from .limits import LARGE_PIXELS, MAX_PIXELS
from .untrusted_files import expect, file_error

Picture = NDArray[np.uint8]
AT_ONCE = 1024  # pictures decoded ahead
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # no others: for PostScript, Pillow would start a program
GREY = ("1", "L", "LA", "I", "I;16", "F")  # modes of pictures without colours
ONE_LARGE = Lock()  # held while a large picture is decoded


def decode_pictures(encoded: Iterable[tuple[str, Callable[[], bytes]]], shape: Shape) -> Iterator[Picture]:
    """The pictures (channels, size, size) of pairs (name, function that reads the bytes); decoding uses all cores."""
    remaining = iter(encoded)
    with ThreadPoolExecutor() as pool, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # our own error says it
        while some := list(islice(remaining, AT_ONCE)):
            for picture in pool.map(partial(_decoded, shape=shape), some):
                if isinstance(picture, InputError):
                    raise picture
                yield picture


def picture_shape(name: str, read: Callable[[], bytes]) -> tuple[int, int, int]:
    """Channels (1 or 3), width and height of one encoded picture, which is not decoded. Raises InputError by `name`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(read()), formats=FORMATS) as image:
                return (1 if image.mode in GREY else 3, *image.size)
    except InputError:
        raise
    except Exception as error:  # a damaged picture may fail in any way
        raise file_error(name, "not a readable picture") from error


def _decoded(encoded: tuple[str, Callable[[], bytes]], shape: Shape) -> Picture | InputError:
    """The picture or the error: one that is raised would keep the picture's bytes in memory until it is handled."""
    try:
        return _decode(*encoded, shape)
    except InputError as error:
        return InputError(str(error))


def _decode(name: str, read: Callable[[], bytes], shape: Shape) -> Picture:
    try:
        with Image.open(io.BytesIO(read()), formats=FORMATS) as image:
            size, resized = image.size, _resized(image.size, shape)
            fits = shape.resize or size == (shape.size, shape.size)
            expect(fits, name, f"a picture of {size}, expected {shape.size} x {shape.size}")
            pixels = max(prod(size), prod(resized))
            becomes = "" if size == resized else " that would become one of {:,} x {:,}".format(*resized)
            shown = f"{size[0]:,} x {size[1]:,} pixels{becomes}"
            expect(pixels <= MAX_PIXELS, name, f"a picture of {shown}; at most {MAX_PIXELS:,} pixels are read")
            with ONE_LARGE if pixels > LARGE_PIXELS else nullcontext():
                return _pixels(image, resized, shape)
    except InputError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise file_error(name, f"a picture of more than {MAX_PIXELS:,} pixels") from error
    except Exception as error:  # a damaged picture may fail in any way
        raise file_error(name, "not a readable picture") from error


def _resized(size: tuple[int, int], shape: Shape) -> tuple[int, int]:
    """The size to which a photograph of `size` is resized before its central square is cut out."""
    if not shape.resize or size == (shape.size, shape.size):
        return size
    scale = round(shape.size * 8 / 7) / max(min(size), 1)
    width, height = (max(shape.size, round(side * scale)) for side in size)
    return width, height


def _pixels(image: Image.Image, resized: tuple[int, int], shape: Shape) -> Picture:
    """Shorter side to size * 8 / 7 (256 for 224), then the central square: FedLESAM's transform of domains."""
    picture = image.convert("L" if shape.channels == 1 else "RGB")
    if picture.size != resized:
        picture = picture.resize(resized, Image.Resampling.BILINEAR)
    left, top = ((side - shape.size) // 2 for side in resized)
    picture = picture.crop((left, top, left + shape.size, top + shape.size))
    return np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1)

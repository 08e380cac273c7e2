"""Encoded pictures to arrays, several at once."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ...core.errors import InputError
from .part import Shape

Picture = NDArray[np.uint8]
AT_ONCE = 1024  # pictures decoded ahead


def decoded(encoded: Iterable[tuple[str, Callable[[], bytes]]], shape: Shape) -> Iterator[Picture]:
    """The pictures (channels, size, size) of (name, how to get the bytes); decoding uses all cores."""
    waiting = iter(encoded)
    with ThreadPoolExecutor() as pool:
        while some := list(islice(waiting, AT_ONCE)):
            yield from pool.map(partial(_decode, shape=shape), some)


def _decode(encoded: tuple[str, Callable[[], bytes]], shape: Shape) -> Picture:
    name, read = encoded
    try:
        with Image.open(io.BytesIO(read())) as image:
            picture = image.convert("L" if shape.channels == 1 else "RGB")
    except Exception as error:  # a damaged picture may fail in any way
        raise InputError(f"data file {name}: not a readable picture") from error
    picture = _square(picture, shape.size) if shape.resize else picture
    if picture.size != (shape.size, shape.size):
        raise InputError(f"data file {name}: a picture of {picture.size}, expected {shape.size} x {shape.size}")
    return np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1)


def _square(picture: Image.Image, size: int) -> Image.Image:
    """Shorter side to size * 8 / 7 (256 for 224), then the central square: FedLESAM's transform of domains."""
    if picture.size == (size, size):
        return picture
    scale = round(size * 8 / 7) / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    return picture.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + size, top + size))

"""A bound on what a received array may come to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Array


@contextmanager
def arrays_up_to(most: int) -> Iterator[None]:
    """Inside the block, a received array of more than `most` bytes is refused before it is put together: ValueError.

    Flower sends an array as pieces and a list of which piece comes where, and a few bytes can name the same piece a
    million times.
    """
    original = Array.inflate

    def inflate(object_content: bytes, children: dict[str, Any] | None = None) -> Array:
        sizes = [len(piece.data) for piece in (children or {}).values()]
        _, _, body = object_content.partition(b"\x00")
        size = sum(sizes[place] for place in json.loads(body)["arraychunk_ids"])
        if size > most:
            raise ValueError(f"an array has {size:,} bytes, {most:,} are the most")
        return original(object_content, children)

    Array.inflate = inflate  # type: ignore[method-assign]
    try:
        yield
    finally:
        Array.inflate = original  # type: ignore[method-assign]

"""Bounds on what a received array may come to, and on how long a reply is waited for."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from flwr.app import Array
from flwr.superlink.grid import http_grid

_until = threading.local()
_pull_objects = http_grid.pull_objects


def _pull_in_time(*arguments: Any, **named: Any) -> dict[str, bytes]:
    moment = getattr(_until, "moment", None)
    if moment is not None:
        named["max_time"] = max(moment - monotonic(), 0.0)
    return _pull_objects(*arguments, **named)


@contextmanager
def pulling_until(moment: float) -> Iterator[None]:
    """Inside the block, in this thread, Flower's network waits for the rest of a reply until `moment` of the monotonic
    clock, and some seconds more, which are between its looks; without it, for two hours."""
    # Flower's own limit is an argument that its grid does not pass on.
    http_grid.pull_objects = _pull_in_time
    _until.moment = moment
    try:
        yield
    finally:
        del _until.moment


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

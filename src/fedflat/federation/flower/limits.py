"""Limits on the size of received arrays and on the time that Flower waits for them, which Flower itself lacks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from flwr.app import Array
from flwr.superlink.grid import http_grid

_thread = threading.local()
_flower_pull_objects = http_grid.pull_objects


def _pull_objects(*arguments: Any, **named: Any) -> dict[str, bytes]:
    deadline, count = getattr(_thread, "deadline", None), getattr(_thread, "count", None)
    if deadline is not None:
        named["max_time"] = max(deadline - monotonic(), 0.0)
    if count is not None and "pull_object_fn" in named:
        named["pull_object_fn"] = _counting(named["pull_object_fn"], count)
    return _flower_pull_objects(*arguments, **named)


def _counting(pull: Callable[[str], bytes], count: Callable[[int], None]) -> Callable[[str], bytes]:
    def pull_and_count(object_id: str) -> bytes:
        content = pull(object_id)
        count(len(content))
        return content

    return pull_and_count


@contextmanager
def pull_deadline(deadline: float, count: Callable[[int], None] = lambda size: None) -> Iterator[None]:
    """Inside the block, in this thread, Flower stops waiting for the rest of a reply at `deadline` (monotonic clock).

    It looks every few seconds, so it may stop that much later. Without the block it waits for two hours. count: called
    with the bytes of each part of the reply that has come, in several threads.
    """
    # Flower's `pull_objects` has an argument for this, which its grid does not pass on.
    http_grid.pull_objects = _pull_objects
    _thread.deadline, _thread.count = deadline, count
    try:
        yield
    finally:
        del _thread.deadline, _thread.count


@contextmanager
def array_limit(limit: int) -> Iterator[None]:
    """Inside the block, a received array of more than `limit` bytes raises ValueError before it is assembled.

    Flower sends an array as chunks and a list of their order. Such a list needs few bytes to name the same chunk a
    million times.
    """
    original = Array.inflate

    def inflate(object_content: bytes, children: dict[str, Any] | None = None) -> Array:
        sizes = [len(chunk.data) for chunk in (children or {}).values()]
        _, _, body = object_content.partition(b"\x00")
        size = sum(sizes[chunk] for chunk in json.loads(body)["arraychunk_ids"])
        if size > limit:
            raise ValueError(f"an array has {size:,} bytes, {limit:,} are the most")
        return original(object_content, children)

    Array.inflate = inflate  # type: ignore[method-assign]
    try:
        yield
    finally:
        Array.inflate = original  # type: ignore[method-assign]

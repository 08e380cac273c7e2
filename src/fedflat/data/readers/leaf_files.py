"""LEAF's files (Caldas et al., 2018): JSON with the samples x and labels y of each user."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .untrusted_files import expect, listed, parsing, read_regular


def leaf_users(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield name, samples and labels of each user of a file, in the order of its list `users`.

    Raises InputError, naming the file, for JSON of another form.
    """
    name = str(path)
    with parsing(name, "not JSON"):
        content = json.loads(read_regular(path))
    expect(isinstance(content, dict) and isinstance(content.get("users"), list), name, "has no list 'users'")
    held = content.get("user_data")
    expect(isinstance(held, dict), name, "has no object 'user_data'")
    for user in content["users"]:
        expect(isinstance(user, str), name, f"has a user that is no text: {listed([repr(user)])}")
        own = held.pop(user, None)  # which frees its memory when the caller is done
        fits = isinstance(own, dict) and all(isinstance(own.get(key), list) for key in ("x", "y"))
        expect(fits, name, f"user {listed([user])!r} has no lists 'x' and 'y', or is listed twice")
        x, y = own["x"], own["y"]
        expect(len(x) == len(y), name, f"user {listed([user])!r} has {len(x)} samples and {len(y)} labels")
        yield user, x, y


def is_text(samples: list[Any]) -> bool:
    """Return whether all samples are texts."""
    return all(isinstance(sample, str) for sample in samples)

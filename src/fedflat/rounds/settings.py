"""The settings that rounds depend on, as a checkpoint keeps them and as they are compared when a run goes on."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import MISSING, fields
from math import inf
from typing import Any


def described(thing: Any) -> dict[str, Any]:
    """A dataclass, such as a method, as a dictionary: its class, which no field can be called, and all its fields."""
    return {"class": type(thing).__name__, **{f.name: getattr(thing, f.name) for f in fields(thing)}}


def first_difference(before: Any, now: Any) -> str | None:
    """The first field in which `now`, a dataclass, differs from what a checkpoint keeps of it, in words.

    A field that the checkpoint does not know, because it is newer than the checkpoint, had its default then. `before`
    is what `described` gave, or the `repr` of the dataclass, which checkpoints of format 2 began with.
    """
    if isinstance(before, str):
        before = parsed(before)
    class_before = before.get("class") if isinstance(before, Mapping) else before
    if not isinstance(before, Mapping) or class_before != type(now).__name__:
        return f" was {class_before}, now it is {type(now).__name__}"
    defaults = {f.name: f.default for f in fields(now) if f.default is not MISSING}
    for name, value in described(now).items():
        then = before.get(name, defaults.get(name))
        if then != value:
            return f".{name} was {then}, now it is {value}"
    unknown = sorted(before.keys() - described(now).keys())
    return f".{unknown[0]} was {before[unknown[0]]}, this version has no such field" if unknown else None


def parsed(text: str) -> dict[str, Any] | str:
    """What `described` would have given for the dataclass with this `repr`; the text itself if it is none.

    Nothing is evaluated but literals, whoever has written the text.
    """
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)  # noqa: S101, PT018 (caught below)
        return {"class": call.func.id, **{str(one.arg): _value(one.value) for one in call.keywords}}
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):  # the last two: nested too deep
        return text


def _value(node: ast.expr) -> Any:
    """The value of a literal, or of `inf`, which is none."""
    return inf if isinstance(node, ast.Name) and node.id == "inf" else ast.literal_eval(node)

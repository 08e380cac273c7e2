"""The settings that rounds depend on, as a checkpoint keeps them and as they are compared when a run goes on."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import inf
from typing import Any


def described(thing: Any) -> dict[str, Any]:
    """A dataclass, such as a method, as a dictionary: its class, which no field can be called, and all its fields.

    A field that is a dataclass, such as a method inside a method, becomes a dictionary, too.
    """
    values = {f.name: getattr(thing, f.name) for f in fields(thing)}
    return {"class": type(thing).__name__, **{k: described(x) if is_dataclass(x) else x for k, x in values.items()}}


def flat_fields(thing: Any, prefix: str = "") -> dict[str, Any]:
    """All fields of a dataclass by name; of one inside another its class, and its fields as `base.rho`."""
    found: dict[str, Any] = {}
    for f in fields(thing):
        value = getattr(thing, f.name)
        found[prefix + f.name] = type(value).__name__ if is_dataclass(value) else value
        found |= flat_fields(value, f"{prefix}{f.name}.") if is_dataclass(value) else {}
    return found


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
        if is_dataclass(inner := getattr(now, name, None)):
            found = first_difference(described(then) if is_dataclass(then) else then, inner)
            if found:
                return f".{name}{found}"
        elif then != value:
            return f".{name} was {then}, now it is {value}"
    unknown = sorted(before.keys() - described(now).keys())
    return f".{unknown[0]} was {before[unknown[0]]}, this version has no such field" if unknown else None


def parsed(text: str) -> dict[str, Any] | str:
    """What `described` would have given for the dataclass with this `repr`; the text itself if it is none.

    Nothing is evaluated but literals, whoever has written the text.
    """
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)  # noqa: S101 (caught below)
        return _fields(call)
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError):  # the last two: nested too deep
        return text


def _fields(call: ast.Call) -> dict[str, Any]:
    assert isinstance(call.func, ast.Name)  # noqa: S101 (caught above)
    return {"class": call.func.id, **{str(one.arg): _value(one.value) for one in call.keywords}}


def _value(node: ast.expr) -> Any:
    """The value of a literal, of a dataclass inside the dataclass, or of `inf`; the latter two are no literals."""
    if isinstance(node, ast.Call) and not node.args:
        return _fields(node)
    return inf if isinstance(node, ast.Name) and node.id == "inf" else ast.literal_eval(node)

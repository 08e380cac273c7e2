"""Numbers of numpy and torch as Python's, so that every setting can be checked, written and read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def plain_number(value: Any) -> Any:
    """Convert a scalar, or an array or tensor without axes, to a number; `np.float32(0.1)` is 0.10000000149011612.

    Any other value is returned as it is.
    """
    if type(value) in (int, float, bool, str) or getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except RuntimeError:  # of a tensor without memory
        return value


def plain_numbers(value: Any) -> Any:
    """Convert every number in a table or list to one of Python's; arrays become lists."""
    if isinstance(value, dict):
        return {key: plain_numbers(one) for key, one in value.items()}
    if isinstance(value, list) and not all(type(one) is int for one in value):  # listed cohorts may be a million
        return [plain_numbers(one) for one in value]
    return value.tolist() if getattr(value, "ndim", 0) and hasattr(value, "tolist") else plain_number(value)


def plain_fields(instance: Any) -> None:
    """Make the numbers in the fields of a dataclass, frozen or not, Python's, right after it was made."""
    for f in fields(instance):
        object.__setattr__(instance, f.name, plain_number(getattr(instance, f.name)))


def takes_numbers(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function get numbers of numpy and torch among its arguments as Python's."""

    @wraps(function)
    def called(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
        arguments: Any = [plain_number(one) for one in given]
        return function(*arguments, **{name: plain_number(one) for name, one in named.items()})

    return called

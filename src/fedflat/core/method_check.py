"""Whether a class that somebody else wrote can be a method, as far as can be seen without running it."""

from __future__ import annotations

from inspect import Parameter, Signature, signature
from typing import Any

from .errors import InputError
from .method import Method
from .records import Record

HOOKS = (
    "init_server", "broadcast", "init_client", "start", "step", "lr_factor", "finish", "receive", "update", "served",
)  # fmt: skip
RECORDS = ("server", "down", "up")


def check_method_class(cls: type[Method]) -> None:
    """Raise InputError, naming the class and what it lacks: a record, a model in a record, or an argument of a hook."""
    for role in RECORDS:
        record = getattr(cls, role, None)
        if not (isinstance(record, type) and issubclass(record, Record)):
            raise InputError(f"{cls.__name__} names no record `{role}`: class {cls.__name__}(Method, {role}=...)")
    for role in ("server", "down"):
        if "w" not in getattr(cls, role).__dataclass_fields__:
            raise InputError(
                f"the record {getattr(cls, role).__name__}, {role} of {cls.__name__}, needs a field w, the model"
            )
    for hook in HOOKS:
        _check_hook(cls, hook)


def _check_hook(cls: type[Method], hook: str) -> None:
    """Raise InputError unless `hook` can be called as the engine calls it: with the interface's arguments in order."""
    expected = list(signature(getattr(Method, hook)).parameters)
    given = signature(getattr(cls, hook))
    try:
        given.bind(*expected)
    except TypeError as error:
        raise InputError(
            f"{cls.__name__}.{hook}({_names(given)}) is called with ({', '.join(expected)}): {error}"
        ) from error


def _names(given: Signature) -> str:
    stars: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    return ", ".join(stars.get(one.kind, "") + name for name, one in given.parameters.items())

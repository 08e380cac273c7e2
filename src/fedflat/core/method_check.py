"""Whether a class that somebody else wrote can be a method, as far as can be seen without running it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from .errors import InputError
from .method import Method
from .own_classes import check_hook, class_title, own_errors_named
from .records import Record
from .wrapper import Wrapper, chain

HOOKS = (
    "check_rounds", "round_lr", "init_server", "broadcast", "init_client", "start", "step", "lr_factor", "finish",
    "receive", "update", "served",
)  # fmt: skip
RECORDS = ("server", "down", "up")


def check_method_class(cls: type[Method]) -> None:
    """Raise InputError, naming the class and what it lacks: a record, a model in a record, or an argument of a hook."""
    if issubclass(cls, Wrapper) and not hasattr(cls, "base"):
        raise InputError(f"{cls.__name__} needs a default for the method inside: base: Method = hyper(FedAvg(), ...)")
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
        check_hook(cls, Method, hook)


@contextmanager
def method_errors_named(method: Method) -> Iterator[None]:
    """Inside the block, an error that a user's hook raises names the method and its file; see `own_errors_named`.

    The hooks of a method inside another one are looked at, too.
    """
    with ExitStack() as stack:
        for one in chain(method):
            stack.enter_context(own_errors_named("method", one, HOOKS))
        yield


def check_pair(method: Method, hook: str, found: Any, kinds: tuple[type[Any], type[Any]]) -> tuple[Any, Any]:
    """The pair that `hook` returned. Raises InputError unless it is one, of objects like those of these `kinds`."""
    if isinstance(found, tuple | list) and len(found) == 2:
        first, second = found
        if _is_like(first, kinds[0]) and _is_like(second, kinds[1]):
            return first, second
    given = (
        f"({', '.join(type(one).__name__ for one in found)})" if isinstance(found, tuple | list) else _article(found)
    )
    raise InputError(f"method {_title(method)}: {hook} must return a pair "
                     f"({kinds[0].__name__}, {kinds[1].__name__}), it returned {given}")  # fmt: skip


def check_record(method: Method, hook: str, found: Any, kind: type[Record]) -> Any:
    """The record that `hook` returned. Raises InputError, which names the `kind` that it must have, if it is none."""
    if _is_like(found, kind):
        return found
    raise InputError(f"method {_title(method)}: {hook} must return the record {kind.__name__}, "
                     f"it returned {_article(found)}")  # fmt: skip


def _is_like(thing: Any, kind: type[Any]) -> bool:
    """Whether a thing is a record, if `kind` is one, or else of this kind; which record is a matter of the contract."""
    return isinstance(thing, Record if issubclass(kind, Record) else kind)


def _title(method: Method) -> str:
    return "-".join(class_title(type(one)) for one in chain(method))


def _article(thing: Any) -> str:
    return "nothing" if thing is None else f"a {type(thing).__name__}"

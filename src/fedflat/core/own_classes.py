"""Classes that users write: whether their hooks fit, and their errors in one line that says where they are."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import CodeType
from typing import Any

from .errors import InputError, NonFiniteError, is_out_of_memory, printable, shortened

PACKAGE = __package__.partition(".")[0]
FOLDER = str(Path(__file__).parents[1])
LONGEST = 400  # characters of an error's own message


def class_title(cls: type[Any]) -> str:
    """A class as users name it: `mom.py:FedMom` for one of their files, its name for one of a package or a notebook."""
    file = _file_of(cls) if _is_own(cls) else None
    return f"{Path(file).name}:{cls.__qualname__}" if file and file.endswith(".py") else cls.__qualname__


def check_hook(cls: type[Any], base: type[Any], hook: str) -> None:
    """Raise InputError unless `hook` of `cls` can be called as `base` declares it: with these arguments in order."""
    expected = list(signature(getattr(base, hook)).parameters)
    if isinstance(inspect.getattr_static(cls, hook), staticmethod | classmethod):
        expected = expected[1:]
    given = signature(getattr(cls, hook))
    try:
        given.bind(*expected)
    except TypeError as error:
        raise InputError(
            f"{cls.__name__}.{hook}({_names(given)}) is called with ({', '.join(expected)}): {error}"
        ) from error


@contextmanager
def own_errors_named(kind: str, thing: object, hooks: Sequence[str]) -> Iterator[None]:
    """Inside the block, an error that a user's hook of `thing` raises becomes an InputError that names both.

    kind: what `thing` is, such as "method". An error inside this package, and one that has a message of its own, such
    as a lack of memory, stays as it is. The user's error is the cause of the new one, and has the whole traceback.
    """
    try:
        yield
    except Exception as error:
        place = None if _speaks_for_itself(error) else _place(error, type(thing), hooks)
        if place is None:
            raise
        hook, file, line = place
        text = (str(error).splitlines() or [""])[0]
        raise InputError(printable(
            f"{kind} {class_title(type(thing))}: {hook} raised {type(error).__name__}"
            f"{f': {shortened(text, LONGEST)}' if text else ''} ({Path(file).name}, line {line})"
        )) from error  # fmt: skip


def _place(error: Exception, cls: type[Any], hooks: Sequence[str]) -> tuple[str, str, int] | None:
    """The user's hook in which an error was raised, and its file and line; None if it was raised somewhere else."""
    codes = {code: hook for hook in hooks if (code := _own_code(cls, hook))}
    frames = [(frame.f_code, line or 0) for frame, line in traceback.walk_tb(error.__traceback__)]
    first = next((i for i, (code, _) in enumerate(frames) if code in codes), None)
    if first is None:
        return None
    hook, file = codes[frames[first][0]], frames[first][0].co_filename
    last, line = [one for one in frames[first:] if one[0].co_filename == file or _is_ours(one[0])][-1]
    return None if _is_ours(last) else (hook, file, line)


def _own_code(cls: type[Any], hook: str) -> CodeType | None:
    """The code of a hook that is not this package's own."""
    function = inspect.unwrap(getattr(cls, hook))
    code: CodeType | None = getattr(function, "__code__", None)
    return None if code is None or _is_ours(code) else code


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(FOLDER)


def _is_own(cls: type[Any]) -> bool:
    """Whether a class is a user's."""
    return cls.__module__.partition(".")[0] != PACKAGE


def _file_of(cls: type[Any]) -> str | None:
    try:
        return inspect.getfile(cls)
    except (TypeError, OSError):  # one of a session
        return None


def _speaks_for_itself(error: Exception) -> bool:
    """Whether an error says what to do by itself, or is reported in words of its own."""
    return is_out_of_memory(error) or isinstance(error, InputError | NonFiniteError)


def _names(given: Signature) -> str:
    stars: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    return ", ".join(stars.get(one.kind, "") + name for name, one in given.parameters.items())

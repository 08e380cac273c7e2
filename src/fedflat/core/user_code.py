"""Code of users: its origin, the names it refers to, checks of classes against interfaces, and one-line errors."""

from __future__ import annotations

import dis
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import Tensor

from .errors import InputError, NonFiniteError, is_out_of_memory, printable, with_type
from .method import GROUPS, Method
from .records import Record
from .registry import known_names
from .wrapper import Wrapper, chain

FOLDER = str(Path(__file__).parents[1]) + os.sep  # of this package
INSTALLED = (FOLDER, sysconfig.get_path("stdlib") + os.sep, "<frozen")
PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Large libraries whose functions and objects, other than modules, are known to keep no state between calls.
LIBRARIES = sys.stdlib_module_names | {"torch", "torchvision", "numpy", "transformers", "peft", "timm", "fedflat"}
LONGEST = 400  # characters of an error's own message


def is_installed(thing: Any) -> bool:
    """Tell, by its file, whether a function, class or module is part of Python, an installed package or this package.

    The name of the object and the version of its package then identify the code.
    """
    if isinstance(thing, FunctionType):
        file = thing.__code__.co_filename
    else:
        module = thing if isinstance(thing, ModuleType) else sys.modules.get(thing.__module__)
        if module is None or "main__" in module.__name__:
            return False
        file = getattr(module, "__file__", None) or INSTALLED[0]  # written in C
    return file.startswith(INSTALLED) or any(part in file for part in PACKAGES)


def keeps_nothing(module: str | None) -> bool:
    """Tell whether functions and plain objects of the module with this name are known to keep no state between calls.

    This is stricter than `is_installed`: an installed package outside `LIBRARIES` may keep state, as a user's file may.
    """
    return (module or "").partition(".")[0] in LIBRARIES


def class_title(cls: type[Any]) -> str:
    """Return the name of a class for its user: `mom.py:FedMom` from a file, `FedMom` from a package or a notebook."""
    file = _file_of(cls) or ""
    is_users = file.endswith(".py") and not file.startswith(FOLDER)
    return f"{Path(file).name}:{cls.__qualname__}" if is_users else cls.__qualname__


def check_hook(cls: type[Any], base: type[Any], hook: str) -> None:
    """Raise InputError unless `hook` of `cls` can be called as `base` declares it: with the same arguments in order."""
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
    """Turn an error that a user's hook of `thing` raises in the block into an InputError that names hook and `thing`.

    kind: what `thing` is, such as "method". Errors inside this package pass unchanged, and so do errors that have a
    message for the user already, such as a lack of memory. The user's error is the cause of the new one.
    """
    try:
        yield
    except Exception as error:
        has_own_message = is_out_of_memory(error) or isinstance(error, InputError | NonFiniteError)
        place = None if has_own_message else _place(error, type(thing), hooks)
        if place is None:
            raise
        hook, file, line = place
        raise InputError(printable(
            f"{kind} {class_title(type(thing))}: {hook} raised {with_type(error, LONGEST)} "
            f"({Path(file).name}, line {line})"
        )) from error  # fmt: skip


def _place(error: Exception, cls: type[Any], hooks: Sequence[str]) -> tuple[str, str, int] | None:
    """Find the user's hook in which an error was raised, and its file and line; None if it was raised elsewhere."""
    codes = {code: hook for hook in hooks if (code := _own_code(cls, hook))}
    frames = [(frame.f_code, line or 0) for frame, line in traceback.walk_tb(error.__traceback__)]
    first = next((i for i, (code, _) in enumerate(frames) if code in codes), None)
    if first is None:
        return None
    hook, file = codes[frames[first][0]], frames[first][0].co_filename
    last, line = [one for one in frames[first:] if one[0].co_filename == file or _is_ours(one[0])][-1]
    return None if _is_ours(last) else (hook, file, line)


def _own_code(cls: type[Any], hook: str) -> CodeType | None:
    """Return the code of a hook; None if the hook is this package's own, or has no Python code."""
    function = inspect.unwrap(getattr(cls, hook))
    code: CodeType | None = getattr(function, "__code__", None)
    return None if code is None or _is_ours(code) else code


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(FOLDER)


def _file_of(cls: type[Any]) -> str | None:
    try:
        return inspect.getfile(cls)
    except (TypeError, OSError):  # defined in an interactive session
        return None


def _names(given: Signature) -> str:
    stars: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
    return ", ".join(stars.get(one.kind, "") + name for name, one in given.parameters.items())


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the variables of enclosing functions that `function` uses and that are set, by name."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it is not set yet
            continue
    return found


def global_names(function: FunctionType, *operations: str) -> set[str]:
    """Return the names of globals that `function` reaches by these bytecode `operations`, such as LOAD_GLOBAL."""
    steps = (step for code in codes_of(function.__code__) for step in dis.get_instructions(code))
    return {step.argval for step in steps if step.opname in operations}


HOOKS = (
    "check_rounds", "round_lr", "init_server", "broadcast", "init_client", "start", "step", "own_step", "lr_factor",
    "finish", "public", "receive", "update", "served",
)  # fmt: skip
RECORDS = ("server", "down", "up")


def check_method_class(cls: type[Method]) -> None:
    """Raise InputError, naming the class and what is wrong: a record, its model, the group, or a hook's arguments."""
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
    if cls.group not in GROUPS:
        raise InputError(f"{cls.__name__}.group: there is no group {cls.group!r}; {known_names(cls.group, GROUPS)}")
    for hook in HOOKS:
        check_hook(cls, Method, hook)


@contextmanager
def method_errors_named(method: Method) -> Iterator[None]:
    """Name the method and its file in an error that a user's hook raises in the block; see `own_errors_named`.

    The hooks of a wrapped method are covered, too.
    """
    with ExitStack() as stack:
        for one in chain(method):
            stack.enter_context(own_errors_named("method", one, HOOKS))
        yield


def check_pair(method: Method, hook: str, found: Any, kinds: tuple[type[Any], type[Any]]) -> tuple[Any, Any]:
    """Return the pair that `hook` returned. Raises InputError unless it is a pair of objects of these `kinds`."""
    if isinstance(found, tuple | list) and len(found) == 2:
        first, second = found
        if _is_like(first, kinds[0]) and _is_like(second, kinds[1]):
            return first, second
    given = (
        f"({', '.join(type(one).__name__ for one in found)})" if isinstance(found, tuple | list) else _article(found)
    )
    raise InputError(f"method {_title(method)}: {hook} must return a pair "
                     f"({kinds[0].__name__}, {kinds[1].__name__}), it returned {given}")  # fmt: skip


def check_direction(method: Method, hook: str, found: Any) -> Tensor:
    """Return the direction that `hook` returned. Raises InputError unless it is a tensor."""
    if isinstance(found, Tensor):
        return found
    raise InputError(f"method {_title(method)}: {hook} must return a direction, it returned {_article(found)}")


def check_record(method: Method, hook: str, found: Any, kind: type[Record]) -> Any:
    """Return the record that `hook` returned. Raises InputError, naming the expected `kind`, if it is no record."""
    if _is_like(found, kind):
        return found
    raise InputError(f"method {_title(method)}: {hook} must return the record {kind.__name__}, "
                     f"it returned {_article(found)}")  # fmt: skip


def _is_like(thing: Any, kind: type[Any]) -> bool:
    """Tell whether `thing` is an instance of `kind`; if `kind` is a class of records, any record qualifies.

    The contract checks that the record is of the right class.
    """
    return isinstance(thing, Record if issubclass(kind, Record) else kind)


def _title(method: Method) -> str:
    return "-".join(class_title(type(one)) for one in chain(method))


def _article(thing: Any) -> str:
    return "nothing" if thing is None else f"a {type(thing).__name__}"

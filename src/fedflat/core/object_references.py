"""Objects outside this package that users name: `file.py:Name`, `package.module:Name`, or a package's entry point.

The form with a colon is Python packaging's object reference. Loading an object runs the code of its module, so
references are loaded only inside `allow_code()`: the reader of a configuration decides whether it may name code. An
entry point is declared by an installed package and may always be loaded.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from .errors import InputError, printable, shortened
from .registry import matching, suggestion

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_lock = Lock()
_nesting = [0]  # how many blocks of `allow_code` are active


@dataclass(frozen=True)
class ExtensionPoint:
    """A kind of object that users may add, such as methods."""

    name: str  # such as "methods": packages declare entry points in the group fedflat.methods
    words: str  # for messages: what an object must be, such as "a subclass of fedflat's Method"
    qualifies: Callable[[Any], bool]
    check: Callable[[Any], None] = lambda _: None  # raises InputError for an object that cannot work


@dataclass(frozen=True)
class CodeOrigin:
    """The location of the code of an object."""

    file: str
    sha256: str  # of the file


@contextmanager
def allow_code() -> Iterator[None]:
    """Allow configurations to name code inside the block; loading an object runs the code of its file."""
    with _lock:
        _nesting[0] += 1
    try:
        yield
    finally:
        with _lock:
            _nesting[0] -= 1


def is_code_allowed() -> bool:
    """Tell whether the call is inside `allow_code()`."""
    return _nesting[0] > 0


def check_allowed(name: str) -> None:
    """Raise InputError if `name` is an object reference and the call is not inside `allow_code()`."""
    if is_reference(name) and not is_code_allowed():
        raise InputError(
            f"{printable(shortened(name))} names code, which is not run without permission: give --allow-code, or in "
            "Python use fedflat.allow_code()"
        )


def is_reference(name: object) -> bool:
    """Tell whether `name` is an object reference, not the name of a built-in entry."""
    return isinstance(name, str) and ":" in name


def resolved(reference: str) -> str:
    """Make the file path in `reference` absolute; a reference to a module is unchanged.

    Raises InputError for a missing file.
    """
    place, _, attribute = reference.rpartition(":")
    if not _is_path(place):
        return reference
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise InputError(f"{printable(reference)}: there is no file {printable(str(path))}")
    return f"{path}:{attribute}"


def relative_to(folder: Path, name: str) -> str:
    """Prefix the path in a reference with `folder`, the folder to which it is relative; other names are unchanged."""
    place, colon, attribute = name.rpartition(":")
    return f"{folder / Path(place).expanduser()}:{attribute}" if colon and _is_path(place) else name


def short_name(name: str) -> str:
    """Return the name of the object in a reference, such as Mine in `my.py:Mine`; other names are unchanged."""
    return name.rpartition(":")[2]


def file_of(name: str) -> Path | None:
    """Return the file that a reference names; None for other names."""
    place, colon, _ = name.rpartition(":")
    return Path(place) if colon and _is_path(place) else None


def portable(name: str) -> str:
    """Remove the folder from a reference, so that the result is equal on every machine; other names are unchanged."""
    place, colon, attribute = name.rpartition(":")
    return f"{Path(place).name}:{attribute}" if colon and _is_path(place) else name


def is_outside(name: object, point: ExtensionPoint) -> bool:
    """Tell whether `name` is an object reference, or the name of an entry point that fits `point`."""
    return isinstance(name, str) and (is_reference(name) or matching(name, installed(point)) is not None)


def find_outside(name: str, point: ExtensionPoint) -> Any | None:
    """Load the object that `name` refers to, or the entry point of that name; None if there is neither.

    Raises InputError as `load_object` does.
    """
    if is_reference(name):
        return load_object(name, point)
    known = installed(point)
    entry = known.get(matching(name, known) or "")
    if entry is None:
        return None
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:
        raise InputError(f"{name} ({entry.value}): {_in_one_line(error, entry.module)}") from error
    return _checked(found, f"{name} ({entry.value})", point)


def load_object(reference: str, point: ExtensionPoint) -> Any:
    """Load the object that `reference` names.

    Raises InputError if the call is outside `allow_code()`, if the module or file cannot be imported, if it does not
    define the name, or if the object does not fit `point`. The message is one line that names the reference.
    """
    shown = printable(shortened(reference))
    check_allowed(reference)
    place, _, attribute = resolved(reference).rpartition(":")
    try:
        module = _module_of_file(place) if _is_path(place) else import_module(place)
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{shown}: {_in_one_line(error, place)}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name, value in vars(found).items() if not name.startswith("_") and point.qualifies(value)]
            others = f"; there is {', '.join(names)}" if names else ""
            raise InputError(f"{shown}: there is no {part!r}{suggestion(part, names) or others}")
        found = getattr(found, part)
    return _checked(found, shown, point)


def installed(point: ExtensionPoint) -> dict[str, EntryPoint]:
    """Return the entry points that installed packages declare for `point`, by name; nothing is imported."""
    return _entry_points(f"fedflat.{point.name}")


def origin(name: str, point: ExtensionPoint) -> CodeOrigin | None:
    """Return the file of the object that `name` refers to, with its digest; None if the object is in no file."""
    try:
        path = Path(inspect.getfile(cast("type[Any]", find_outside(name, point))))
        return CodeOrigin(str(path), hashlib.sha256(path.read_bytes()).hexdigest())
    except (TypeError, OSError):
        return None


@cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # here, because it is rarely needed

    return {entry.name: entry for entry in entry_points(group=group)}


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place


def _module_of_file(place: str) -> ModuleType:
    """Import the module in the file `place`, once per process. The module may import others from the same folder."""
    import cloudpickle  # here, because most runs name no file

    name = f"{Path(place).stem}_{hashlib.sha256(place.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise InputError(f"{place} is no file of Python: its name does not end in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(Path(place).parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that it hides no installed module; worker processes have the same path
    sys.modules[name] = module  # dataclasses look up their module by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    cloudpickle.register_pickle_by_value(module)  # no other process can import it by this name
    return module


def _in_one_line(error: BaseException, place: str) -> str:
    """Describe in one line an error that importing `place` raised, with the line in that file."""
    if isinstance(error, ModuleNotFoundError) and error.name and place.startswith(error.name):
        return f"there is no module {error.name!r} that Python can import"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    where = f"line {line} " if line else ""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    text = f"{where}raises {type(error).__name__}" + (f": {message.splitlines()[0]}" if message else "")
    return printable(shortened(text, 400))


def _checked(found: Any, shown: str, point: ExtensionPoint) -> Any:
    if not point.qualifies(found):
        what = f"the class {found.__name__}" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise InputError(f"{shown} is {what}, not {point.words}")
    try:
        point.check(found)
    except InputError as error:
        raise InputError(f"{shown}: {error}") from error
    return found

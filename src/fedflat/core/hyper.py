"""Hyper-parameters: a default, a meaning and a range, declared once on the field of a dataclass.

The range check of the class, the configuration schema, the command line's help and the documentation all use this
declaration. Numbers of NumPy and torch are converted to Python numbers, so that every setting can be checked, written
and read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, wraps
from math import inf
from typing import Any, Literal, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from .errors import FieldError, InputError, shortened
from .registry import suggestion

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def plain_number(value: Any) -> Any:
    """Convert a scalar, or an array or tensor without axes, to a Python number.

    For example, `np.float32(0.1)` becomes 0.10000000149011612. Any other value is returned unchanged.
    """
    if type(value) in (int, float, bool, str) or getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except RuntimeError:  # of a tensor without memory
        return value


def plain_numbers(value: Any) -> Any:
    """Convert every number in a dictionary or list to a Python number; arrays become lists."""
    if isinstance(value, dict):
        return {key: plain_numbers(one) for key, one in value.items()}
    if isinstance(value, list) and not all(type(one) is int for one in value):  # listed cohorts may be a million
        return [plain_numbers(one) for one in value]
    return value.tolist() if getattr(value, "ndim", 0) and hasattr(value, "tolist") else plain_number(value)


def plain_fields(instance: Any) -> None:
    """Convert NumPy and torch numbers in the fields of a dataclass instance, even a frozen one, to Python numbers."""
    for f in fields(instance):
        object.__setattr__(instance, f.name, plain_number(getattr(instance, f.name)))


def takes_numbers(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Wrap a function so that NumPy and torch numbers in its arguments are converted to Python numbers."""

    @wraps(function)
    def called(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
        arguments: Any = [plain_number(one) for one in given]
        return function(*arguments, **{name: plain_number(one) for name, one in named.items()})

    return called


Made = TypeVar("Made")


@dataclass(frozen=True)
class Interval:
    """The numbers from `low` to `high`; with `open_low`, without `low` itself."""

    low: float = -inf
    high: float = inf
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high

    def __str__(self) -> str:
        left = "(" if self.open_low or self.low == -inf else "["
        right = ")" if self.high == inf else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"


def hyper(
    default: Any, meaning: str, *, low: float = -inf, high: float = inf, open_low: bool = False, later: bool = False
) -> Any:
    """Declare a hyper-parameter: its default, its meaning (with unit), and the interval of its values.

    default: MISSING for a hyper-parameter that must be given. later: whether there are results from before the
    hyper-parameter; stored settings leave it out while it has its default, so that these results stay comparable.
    """
    metadata = {"meaning": meaning, "interval": Interval(low, high, open_low), "later": later}
    return field(default=default, metadata=metadata)


def unused_later_fields(table: dict[str, Any], cls: Any) -> set[str]:
    """Return the names of fields of `cls` declared with `later` that have their defaults in `table`, or are missing."""
    later = {f.name: f.default for f in fields(cls) if f.metadata.get("later")}
    return {name for name, default in later.items() if _listed(table.get(name, default)) == _listed(default)}


def _listed(value: Any) -> Any:
    """Return a tuple as the list that stands for it in a table; any other value unchanged."""
    return list(value) if isinstance(value, tuple) else value


def by_name(cls: type[Made], first_by_place: bool = False) -> type[Made]:
    """Make the fields of the dataclass `cls` keyword-only; a wrong call raises InputError that says what to write.

    With `first_by_place`, one positional argument is the value of the first field.
    """
    described: Any = cls
    made = described.__init__
    names = [f.name for f in fields(described) if f.init]
    needed = [f.name for f in fields(described) if f.init and f.default is f.default_factory is MISSING]

    @wraps(made)
    def checked(self: Any, *given: Any, **named: Any) -> None:
        if first_by_place and len(given) == 1 and names and names[0] not in named:
            named[names[0]], given = given[0], ()
        unknown = [name for name in named if name not in names]
        if given or unknown:
            raise InputError(_misnamed(cls.__name__, names, unknown))
        if missing := [name for name in needed if name not in named]:
            raise InputError(f"{cls.__name__} needs {', '.join(missing)}")
        made(self, **named)

    described.__init__ = checked
    return cls


def _misnamed(name: str, names: list[str], unknown: list[str]) -> str:
    """Describe the wrong arguments of a call of the class `name`, whose fields have these `names`."""
    if not names:
        return f"{name} has no fields; write {name}()"
    if not unknown:
        return f"{name} takes its values by name, such as {name}({names[0]}=...); it has {', '.join(names)}"
    return f"{name} has no field {shortened(unknown[0])!r}; it has {', '.join(names)}{suggestion(unknown[0], names)}"


def check(instance: Any, section: str = "") -> None:
    """Raise FieldError if a field of `instance` has a value outside the declared range or choices.

    First, NumPy and torch numbers in the fields are converted to Python numbers.
    section: the configuration section that describes `instance`; if given, the message names it instead of the class.
    """
    cls: Any = type(instance)
    hints = field_types(cls)
    plain_fields(instance)
    for f in fields(instance):
        value = getattr(instance, f.name)
        if not _fits(value, hints[f.name], f.metadata.get("interval", Interval())):
            raise FieldError(f.name, f"must be {allowed(cls, f.name)}, got {value!r}", section or cls.__name__)


def allowed(cls: Any, name: str) -> str:
    """Describe the values that the field `name` of a class may have, such as "a number in [0, inf)"."""
    kind = field_types(cls)[name]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if get_origin(kind) is tuple:
        return _list_of(kind)
    if _is_class(kind):
        return f"a {kind.__name__.lower()}"
    kinds = get_args(kind) or (kind,)
    if bool in kinds:
        return "true or false"
    if str in kinds:
        return "a text" + (" or none" if type(None) in kinds else "")
    interval = next(f.metadata.get("interval", Interval()) for f in fields(cls) if f.name == name)
    number = "a number" if float in kinds else "a whole number"
    return f"{number} in {interval}" + (" or none" if type(None) in kinds else "")


def _list_of(kind: Any) -> str:
    """Describe the values of a field whose type is a tuple of any length."""
    inside = get_args(kind)[0]
    return "a list of " + (_list_of(inside).replace("a list", "lists") if get_origin(inside) is tuple
                           else "texts" if inside is str else "numbers")  # fmt: skip


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return the types of the fields of a class; cached, because a study makes many instances of a class."""
    return get_type_hints(cls)


def _is_class(kind: Any) -> bool:
    """Tell whether the values of a field are objects of a class, such as the base of a wrapper method."""
    return isinstance(kind, type) and kind not in (bool, int, float, str)


def _fits(value: Any, kind: Any, interval: Interval) -> bool:
    if get_origin(kind) is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(kind))
    if get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_fits(one, get_args(kind)[0], interval) for one in value)
    if _is_class(kind):
        return isinstance(value, kind)
    kinds = get_args(kind) or (kind,)
    if value is None or isinstance(value, bool | str):
        return type(value) in kinds
    numbers = (int, float) if float in kinds else (int,) if int in kinds else ()
    return isinstance(value, numbers) and value in interval

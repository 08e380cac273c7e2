"""Models, one in each file; a new file is found without further registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError, first_line, shortened
from ..core.object_references import ExtensionPoint, find_outside, installed, is_outside, is_reference, resolved
from ..core.registry import known_names, matching, module_names, suggestion
from ..operating_system import memory_size
from .blocks.fetched import fetch as fetch

if TYPE_CHECKING:  # names are listed without torch
    from torch import nn


MODELS = ExtensionPoint(
    "models", "a function or class that makes a torch.nn.Module; it may take `classes` and `shape`", callable
)


def model_names() -> list[str]:
    """Return the names of all models: their files' names with `-` for `_`."""
    return [name.replace("_", "-") for name in module_names(__name__)]


def build(name: str, /, classes: int, shape: tuple[int, ...] | None = None, **options: Any) -> nn.Module:
    """Build a new model with fresh weights from torch's random state.

    `name` is one of `model_names()`, an object reference, or an entry point of another package. An object from outside
    this package is called with the options, and with `classes` and `shape` if it has parameters of these names.
    `shape` is the shape of one sample, e.g. (1, 28, 28); models for images of one size have this size as default.
    Raises ValueError for an unknown name or option, a shape the model cannot take, or a model larger than memory.
    """
    make, own = _builder(known_model(name)), name in model_names()
    accepted = signature(make).parameters
    if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in accepted.values()):
        _check_options(name, options, accepted)
    if "shape" in accepted and shape is not None:
        options["shape"] = shape
    elif "shape" in accepted and accepted["shape"].default is Parameter.empty:
        raise InputError(f"model {name!r} needs shape=, the shape of one sample")
    if "classes" in accepted:
        options["classes"] = classes
    try:
        if own and "path" not in options:  # models from outside or from files may not support it
            _check_size(lambda: make(**{key: options[key] for key in options if key != "pretrained"}))
        return make(**options)
    except (TypeError, RuntimeError, ZeroDivisionError, AssertionError, OverflowError) as error:
        raise InputError(f"model {name!r} cannot be built with {options}: {first_line(error)}") from error


def known_model(name: str) -> str:
    """Return the full name of the model `name`. Raises InputError, naming the known models, if it is unknown."""
    known = matching(name, model_names())
    if known is None and is_outside(name, MODELS):
        return resolved(name) if is_reference(name) else name
    if known is None:
        names = [*model_names(), *installed(MODELS)]
        raise InputError(f"model = {name!r} is unknown; {known_names(name, names)}")
    return known


def _builder(name: str) -> Callable[..., nn.Module]:
    """Return the function that makes the model `name`."""
    if name not in model_names():
        try:
            return _checked_builder(name, find_outside(name, MODELS))
        except InputError as error:
            raise InputError(f"model: {error}") from error
    make: Callable[..., nn.Module] = import_module(f"{__name__}.{name.replace('-', '_')}").build
    return make


def _checked_builder(name: str, make: Any) -> Callable[..., nn.Module]:
    """Wrap `make`, a function from outside this package: raise InputError for its errors, or if it makes no module."""
    from torch import nn  # here, so that names are listed without it

    @wraps(make)
    def checked(**options: Any) -> nn.Module:
        try:
            module = make(**options)
        except Exception as error:
            raise InputError(f"model {name!r} raises {type(error).__name__}: {shortened(str(error))}") from error
        if not isinstance(module, nn.Module):
            raise InputError(f"model {name!r} makes a {type(module).__name__}, not a torch.nn.Module")
        return module

    return checked


def _check_options(name: str, options: Mapping[str, object], accepted: Mapping[str, Parameter]) -> None:
    """Raise InputError for an option that the model's `build` does not accept."""
    known = [option for option in accepted if option not in ("classes", "shape")]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise InputError(
            f"model {name!r} has no option {unknown[0]!r} (model.options.{unknown[0]}); "
            f"it has {', '.join(known) or 'none'}{suggestion(unknown[0], known)}"
        )


def parameter_count(name: str, classes: int, shape: tuple[int, ...], **options: Any) -> int:
    """Count the parameters of the model that `build` makes; nothing is allocated, and no optional package is needed."""
    if name in model_names():
        module = import_module(f"{__name__}.{name.replace('-', '_')}")
        if hasattr(module, "parameter_count"):
            count: int = module.parameter_count(classes, shape)
            return count
    with _without_memory() if name in model_names() else nullcontext():
        return sum(p.numel() for p in build(name, classes, shape, **options).parameters())


@contextmanager
def _without_memory() -> Iterator[None]:
    """Build models on the meta device inside the block: no memory is allocated, and no random numbers are drawn."""
    import torch  # here, so that names are listed without it
    from torch.overrides import TorchFunctionMode

    class Undrawn(TorchFunctionMode):
        """Mode that skips drawing initial weights, which on the meta device would import torch's compiler."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            if getattr(func, "__name__", "") in ("normal_", "uniform_"):
                return args[0] if args else given["tensor"]
            return func(*args, **given)

    with torch.device("meta"), Undrawn():
        yield


def _check_size(make: Callable[[], nn.Module]) -> None:
    """Raise RuntimeError if the parameters do not fit in memory: the system would kill a process that builds them."""
    with _without_memory():
        needed = sum(p.numel() * p.element_size() for p in make().parameters())
    present = memory_size()
    if needed > present:
        raise RuntimeError(f"its parameters have {needed / 1e9:,.0f} GB, the memory has {present / 1e9:,.0f} GB")


def to_group_norm(module: nn.Module, groups: int = 32) -> nn.Module:
    """Return a copy with GroupNorm in place of every BatchNorm; see `models.blocks.group_norm.to_group_norm`."""
    from .blocks.group_norm import to_group_norm as converted  # here, so that names are listed without torch

    return converted(module, groups)

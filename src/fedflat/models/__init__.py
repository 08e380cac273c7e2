"""Models without batch normalisation. One file each; a new file is found without further registration."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError
from ..core.registry import known_names, module_names, suggestion

if TYPE_CHECKING:  # names are listed without torch
    from torch import nn


def model_names() -> list[str]:
    """The names of all models: their files' names with `-` for `_`."""
    return [name.replace("_", "-") for name in module_names(__name__)]


def build(name: str, /, classes: int, shape: tuple[int, ...] | None = None, **options: Any) -> nn.Module:
    """A new model with fresh weights from torch's random state.

    `shape` is the shape of one sample, e.g. (1, 28, 28); models made for one size have it as default.
    Raises ValueError for an unknown name or option, a shape the model cannot take, or a model larger than memory.
    """
    if name not in model_names():
        raise InputError(f"model = {name!r} is unknown; {known_names(name, model_names())}")
    make: Callable[..., nn.Module] = import_module(f"{__name__}.{name.replace('-', '_')}").build
    accepted = signature(make).parameters
    _check_options(name, options, accepted)
    if shape is not None:
        options["shape"] = shape
    elif accepted["shape"].default is Parameter.empty:
        raise InputError(f"model {name!r} needs shape=, the shape of one sample")
    try:
        _check_size(lambda: make(classes=classes, **{key: options[key] for key in options if key != "pretrained"}))
        return make(classes=classes, **options)
    except (TypeError, RuntimeError, ZeroDivisionError, AssertionError, OverflowError) as error:
        raise InputError(f"model {name!r} cannot be built with {options}: {str(error).splitlines()[0]}") from error


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
    """How many parameters `build` gives; nothing is allocated, and no optional package is needed."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    if hasattr(module, "parameter_count"):
        count: int = module.parameter_count(classes, shape)
        return count
    with _without_memory():
        return sum(p.numel() for p in build(name, classes, shape, **options).parameters())


@contextmanager
def _without_memory() -> Iterator[None]:
    """Inside the block a model has shapes and no numbers: no memory is allocated and nothing random is drawn."""
    import torch  # here, so that names are listed without it
    from torch.overrides import TorchFunctionMode

    class Undrawn(TorchFunctionMode):
        """Leaves initial weights as they are; on a device without memory, drawing them imports torch's compiler."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            if getattr(func, "__name__", "") in ("normal_", "uniform_"):
                return args[0] if args else given["tensor"]
            return func(*args, **given)

    with torch.device("meta"), Undrawn():
        yield


def _check_size(make: Callable[[], nn.Module]) -> None:
    """Raise RuntimeError if the parameters alone do not fit in memory; the system would end the process."""
    with _without_memory():
        needed = sum(p.numel() * p.element_size() for p in make().parameters())
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise RuntimeError(f"its parameters have {needed / 1e9:,.0f} GB, the memory has {present / 1e9:,.0f} GB")

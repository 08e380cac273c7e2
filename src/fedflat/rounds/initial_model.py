"""The model that training begins with."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from .. import models
from ..core.errors import InputError
from ..data.federated import FederatedData
from .randomness import Purpose, generator


def fresh_module(
    model: str | nn.Module,
    classes: int,
    shape: tuple[int, ...],
    seed: int,
    options: dict[str, Any],
    dtype: torch.dtype | None,
) -> nn.Module:
    """The model to train, for samples of this `shape`: a copy of the given one, or a new one whose weights depend on
    the seed alone.

    Raises InputError, naming the argument.
    """
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InputError(f"dtype must be a floating-point torch.dtype, got {dtype!r}")
    if isinstance(model, nn.Module):
        if options:
            raise InputError("model_options go with the name of a model, not with a module")
        return deepcopy(model).to(dtype=dtype)
    if not isinstance(model, str):
        raise InputError(f"model must be a name or a torch.nn.Module, got {model!r}")
    for given in {"classes", "shape"} & set(options):
        raise InputError(f"model option {given!r} follows from the data and cannot be set (model.options.{given})")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, Purpose.MODEL).integers(2**63)))
        return models.build(model, classes=classes, shape=shape, **options).to(dtype=dtype)


def architecture_of(
    model: str | nn.Module, data: FederatedData, options: dict[str, Any], dtype: torch.dtype | None
) -> dict[str, Any] | None:
    """What `module_of` makes a model of this name with, as values for a JSON file; None if a file cannot say it."""
    with suppress(TypeError, ValueError):  # options that are objects
        if isinstance(model, str):
            made = {"name": models.known_model(model), "options": json.loads(json.dumps(options))}
            size = {"classes": data.classes, "shape": list(data.shape)}
            return made | size | {"dtype": str(dtype or torch.get_default_dtype()).removeprefix("torch.")}
    return None


def module_of(architecture: dict[str, Any]) -> nn.Module:
    """A new module of an architecture that `architecture_of` described. Raises InputError if it cannot be made."""
    name, options, classes, shape = (architecture[key] for key in ("name", "options", "classes", "shape"))
    return fresh_module(name, classes, tuple(shape), 0, options, getattr(torch, architecture["dtype"]))

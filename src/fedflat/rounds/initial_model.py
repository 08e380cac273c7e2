"""The model that training begins with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from .. import models
from ..adapters import LoRA, adapted, with_bfloat16_base
from ..core.errors import InputError
from ..data.federated import FederatedData, digest
from .randomness import Purpose, generator


def fresh_module(
    model: str | nn.Module,
    classes: int,
    shape: tuple[int, ...],
    seed: int,
    options: dict[str, Any],
    dtype: torch.dtype | None,
    adapter: LoRA | None = None,
) -> nn.Module:
    """The model to train, for samples of this `shape`: a copy of the given one, or a new one whose weights depend on
    the seed alone; perhaps with adapters, which depend on the seed, too.

    Raises InputError, naming the argument.
    """
    base = _base(model, classes, shape, seed, options, dtype)
    if adapter is None:
        return base
    if not isinstance(adapter, LoRA):
        raise InputError(f"adapter must be a LoRA such as LoRA(targets=('query', 'value')), got {adapter!r}")
    with _seeded(seed, Purpose.ADAPTER):
        made = adapted(base, adapter).to(dtype=dtype)
    return with_bfloat16_base(made) if adapter.base_dtype == "bfloat16" else made


def _base(
    model: str | nn.Module,
    classes: int,
    shape: tuple[int, ...],
    seed: int,
    options: dict[str, Any],
    dtype: torch.dtype | None,
) -> nn.Module:
    """The model without adapters."""
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
    with _seeded(seed, Purpose.MODEL):
        return models.build(model, classes=classes, shape=shape, **options).to(dtype=dtype)


def frozen_hash(module: nn.Module) -> str:
    """Eight hexadecimal digits that differ between models with other frozen parameters; their names count, too."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    names = torch.tensor(bytearray("\n".join(frozen).encode()), dtype=torch.uint8)
    numbers = (p.cpu().view(torch.int16) if p.dtype == torch.bfloat16 else p.cpu() for p in frozen.values())
    return digest([names, *numbers])


@contextmanager
def _seeded(seed: int, purpose: Purpose) -> Iterator[None]:
    """Seed torch's random state inside the block, and leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, purpose).integers(2**63)))
        yield


def architecture_of(
    model: str | nn.Module,
    data: FederatedData,
    options: dict[str, Any],
    dtype: torch.dtype | None,
    seed: int,
    adapter: LoRA | None = None,
) -> dict[str, Any] | None:
    """What `module_of` makes a model of this name with, as values for a JSON file; None if a file cannot say it."""
    with suppress(TypeError, ValueError):  # options that are objects
        if isinstance(model, str):
            made = {"name": models.known_model(model), "options": json.loads(json.dumps(options))}
            size = {"classes": data.classes, "shape": list(data.shape)}
            # A model with adapters is kept without its frozen parameters, which are those of this seed.
            base = {} if adapter is None else {"seed": seed, "adapter": asdict(adapter)}
            return made | base | size | {"dtype": str(dtype or torch.get_default_dtype()).removeprefix("torch.")}
    return None


def module_of(architecture: dict[str, Any]) -> nn.Module:
    """A new module of an architecture that `architecture_of` described. Raises InputError if it cannot be made."""
    name, options, classes, shape = (architecture[key] for key in ("name", "options", "classes", "shape"))
    adapter = None if architecture.get("adapter") is None else LoRA(**architecture["adapter"])
    seed, dtype = architecture.get("seed", 0), getattr(torch, architecture["dtype"])
    return fresh_module(name, classes, tuple(shape), seed, options, dtype, adapter)

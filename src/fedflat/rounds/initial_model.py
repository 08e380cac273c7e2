"""The model that training begins with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import torch
from torch import nn

from .. import models
from ..adapters import LoRA, adapted, with_bfloat16_base
from ..core.errors import InputError, printable, shortened
from ..core.model_copy import copied
from ..data.federated import digest
from .randomness import Purpose, generator


@dataclass(frozen=True)
class InitialModel:
    """What the model to train is made of: a name with its options, or a module, and perhaps adapters."""

    model: str | nn.Module
    classes: int
    shape: tuple[int, ...]  # of a sample
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None  # of the parameters; None leaves the model's own
    adapter: LoRA | None = None

    def module(self) -> nn.Module:
        """A copy of the given module, or a new one whose weights depend on the seed alone, as its adapters do.

        Raises InputError, naming the argument.
        """
        if self.adapter is None:
            return self._base()
        if not isinstance(self.adapter, LoRA):
            raise InputError(f"adapter must be a LoRA such as LoRA(targets=('query', 'value')), got {self.adapter!r}")
        base = self._base()
        with _seeded(self.seed, Purpose.ADAPTER):
            made = adapted(base, self.adapter).to(dtype=self.dtype)
        return with_bfloat16_base(made) if self.adapter.base_dtype == "bfloat16" else made

    def _base(self) -> nn.Module:
        """The model without adapters."""
        model, options, dtype = self.model, self.options, self.dtype
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise InputError(f"dtype must be a floating-point torch.dtype, got {dtype!r}")
        if isinstance(model, nn.Module):
            if options:
                raise InputError("model_options go with the name of a model, not with a module")
            return copied(model).to(dtype=dtype)
        if not isinstance(model, str):
            raise InputError(f"model must be a name or a torch.nn.Module, got {shortened(printable(repr(model)), 80)}")
        for given in {"classes", "shape"} & set(options):
            raise InputError(f"model option {given!r} follows from the data and cannot be set (model.options.{given})")
        with _seeded(self.seed, Purpose.MODEL):
            return models.build(model, classes=self.classes, shape=self.shape, **options).to(dtype=dtype)

    def architecture(self) -> dict[str, Any] | None:
        """What `of_architecture` makes it of again, as values for a JSON file; None if a file cannot say it."""
        with suppress(TypeError, ValueError):  # options that are objects
            if isinstance(self.model, str):
                made = {"name": models.known_model(self.model), "options": json.loads(json.dumps(self.options))}
                size = {"classes": self.classes, "shape": list(self.shape)}
                # A model with adapters is kept without its frozen parameters, which are those of this seed.
                base = {} if self.adapter is None else {"seed": self.seed, "adapter": asdict(self.adapter)}
                dtype = str(self.dtype or torch.get_default_dtype()).removeprefix("torch.")
                return made | base | size | {"dtype": dtype}
        return None

    @classmethod
    def of_architecture(cls, architecture: Mapping[str, Any]) -> Self:
        """From what `architecture` said."""
        name, options, classes, shape = (architecture[key] for key in ("name", "options", "classes", "shape"))
        adapter = None if architecture.get("adapter") is None else LoRA(**architecture["adapter"])
        dtype = getattr(torch, architecture["dtype"])
        return cls(name, classes, tuple(shape), architecture.get("seed", 0), options, dtype, adapter)


def frozen_hash(module: nn.Module) -> str:
    """Eight hexadecimal digits that differ between models with other frozen parameters; their names count, too."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    names = torch.tensor(bytearray("\n".join(frozen).encode()), dtype=torch.uint8)
    return digest([names, *frozen.values()])


@contextmanager
def _seeded(seed: int, purpose: Purpose) -> Iterator[None]:
    """Seed torch's random state inside the block, and leave it as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator(seed, purpose).integers(2**63)))
        yield

"""The model of a run: its initial parameters, and its file of parameters by name, as safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from .. import models
from ..adapters import LoRA, adapted, kept_parameters, with_bfloat16_base
from ..core.errors import InputError, printable, shortened
from ..core.running_statistics import all_statistics
from ..core.torch_module import copied
from ..data.federated import digest
from ..files import read_bytes
from .randomness import Purpose, generator, seed_torch


@dataclass(frozen=True)
class InitialModel:
    """The description of the model to train: a name with its options, or a module; and adapters, if any."""

    model: str | nn.Module
    classes: int
    shape: tuple[int, ...]  # of a sample
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: torch.dtype | None = None  # of the parameters; None leaves the model's own
    adapter: LoRA | None = None

    def module(self) -> nn.Module:
        """Copy the given module, or build the named model; then add the adapters, if any.

        The weights of a built model and of adapters depend on the seed alone. Raises InputError, naming the argument,
        for an invalid one.
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
        """Build the model without adapters."""
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
        """Return the description as values for a JSON file, which `of_architecture` reads.

        None if JSON cannot hold the description: for a module, or for options that are objects.
        """
        with suppress(TypeError, ValueError):  # options that are objects
            if isinstance(self.model, str):
                made = {"name": models.known_model(self.model), "options": json.loads(json.dumps(self.options))}
                size = {"classes": self.classes, "shape": list(self.shape)}
                # The model's file lacks buffers and, with adapters, frozen parameters, which are those of this seed.
                base = {"seed": self.seed, "adapter": self.adapter and asdict(self.adapter)}
                dtype = str(self.dtype or torch.get_default_dtype()).removeprefix("torch.")
                return made | base | size | {"dtype": dtype}
        return None

    @classmethod
    def of_architecture(cls, architecture: Mapping[str, Any]) -> Self:
        """Make the description from the values that `architecture` returned."""
        name, options, classes, shape = (architecture[key] for key in ("name", "options", "classes", "shape"))
        adapter = None if architecture["adapter"] is None else LoRA(**architecture["adapter"])
        dtype = getattr(torch, architecture["dtype"])
        return cls(name, classes, tuple(shape), architecture["seed"], options, dtype, adapter)


def frozen_hash(module: nn.Module) -> str:
    """Return eight hexadecimal digits, a digest of the frozen parameters and their names."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    names = torch.tensor(bytearray("\n".join(frozen).encode()), dtype=torch.uint8)
    return digest([names, *frozen.values()])


def statistics_hash(module: nn.Module) -> str:
    """Return eight hexadecimal digits, a digest of the running statistics of all layers."""
    return digest(list(all_statistics(module).values()))


@contextmanager
def _seeded(seed: int, purpose: Purpose) -> Iterator[None]:
    """Seed torch's random state inside the block, and restore the earlier state afterwards."""
    with torch.random.fork_rng(devices=[]):
        seed_torch(int(generator(seed, purpose).integers(2**63)))
        yield


MAX_BYTES = 2**36


def save_model(path: Path, model: nn.Module) -> None:
    """Write a model's parameters and running statistics; with adapters, of the parameters only adapters and head.

    Equal models give equal files.
    """
    path.write_bytes(save({name: p.detach().cpu().contiguous() for name, p in _kept(model).items()}))


def _kept(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a model that its file contains, by name."""
    return kept_parameters(model) | all_statistics(model)


def load_model(path: Path, model: nn.Module) -> nn.Module:
    """Put the parameters and running statistics in the file `path` into `model`, which is changed and returned.

    Raises InputError, naming the file, if the file is damaged, belongs to another model, or has NaN or infinity in it.
    The model is then unchanged.
    """
    try:
        tensors = load(read_bytes(path, MAX_BYTES))
    except (OSError, SafetensorError, KeyError, RuntimeError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    parameters = _kept(model)
    if {name: x.shape for name, x in tensors.items()} != {name: p.shape for name, p in parameters.items()}:
        raise InputError(f"{path} is damaged or of another model: its tensors have other names or shapes")
    if not all(torch.isfinite(x).all() for x in tensors.values()):
        raise InputError(f"{path} has parameters that are NaN or infinite")
    for name, p in parameters.items():
        p.data.copy_(tensors[name])
    return model

"""The file of a trained model: its parameters by name, as safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from ..adapters import kept_parameters
from ..core.errors import InputError
from ..files import read_bytes

MAX_BYTES = 2**36


def save_model(path: Path, model: nn.Module) -> None:
    """Write a model's parameters by name, of one with adapters these and the head; equal models make equal files."""
    path.write_bytes(save({name: p.detach().cpu().contiguous() for name, p in kept_parameters(model).items()}))


def load_model(path: Path, model: nn.Module) -> nn.Module:
    """Put the parameters in the file `path` into `model`, which is changed and returned.

    Raises InputError, naming the file, and leaves the model as it is, if the file is damaged, of another model, or has
    NaN or infinity in it.
    """
    try:
        tensors = load(read_bytes(path, MAX_BYTES))
    except (OSError, SafetensorError, KeyError, RuntimeError, TypeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    parameters = kept_parameters(model)
    if {name: x.shape for name, x in tensors.items()} != {name: p.shape for name, p in parameters.items()}:
        raise InputError(f"{path} is damaged or of another model: its parameters have other names or shapes")
    if not all(torch.isfinite(x).all() for x in tensors.values()):
        raise InputError(f"{path} has parameters that are NaN or infinite")
    for name, p in parameters.items():
        p.data.copy_(tensors[name])
    return model

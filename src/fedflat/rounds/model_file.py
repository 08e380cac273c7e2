"""The file of a trained model: its parameters by name, as safetensors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from ..core.errors import InputError
from ..files import read_bytes

MAX_BYTES = 2**36


def save_model(path: Path, model: nn.Module) -> None:
    """Write a model's parameters by name; equal models make equal files."""
    path.write_bytes(save({name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}))


def load_model(path: Path, model: nn.Module) -> nn.Module:
    """Put the parameters in the file `path` into `model`, which is changed and returned.

    Raises InputError, naming the file, if it is damaged, of another model, or has NaN or infinity in it.
    """
    try:
        tensors = load(read_bytes(path, MAX_BYTES))
        for name, p in model.named_parameters():
            if tensors[name].shape != p.shape or not torch.isfinite(tensors[name]).all():
                raise InputError(f"{path} is of another model, or has parameters that are NaN or infinite")
            p.data.copy_(tensors[name])
    except (OSError, SafetensorError, KeyError, RuntimeError, TypeError) as error:
        raise InputError(f"{path} is damaged or of another model: {error}") from error
    return model

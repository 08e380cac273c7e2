"""Folders with an adapter in the format of `peft`: writing them, and reading them as the start of an adapter."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..core.errors import InputError
from ..files import read_bytes, read_json, write_atomically
from .lora import LoRA

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
MAX_BYTES = 2**36


def load_start(network: Any, adapter: LoRA, start: str) -> None:
    """Load the adapter in the folder `start` into `network`, a `PeftModel` with an adapter of the same shape.

    Only safetensors are read, and nothing is unpickled. Raises InputError, naming the folder or the field of `adapter`,
    if the adapter in the folder does not fit.
    """
    folder = Path(start).expanduser()
    tensors = _tensors(folder)
    _check_scale(folder, adapter)
    import peft  # here, because it is optional; `network` is made by it

    own = peft.get_peft_model_state_dict(network, save_embedding_layers=False)
    if {name: x.shape for name, x in tensors.items()} != {name: x.shape for name, x in own.items()}:
        raise InputError(f"adapter.start: {folder} is an adapter of another model, or of other targets, r or head")
    if not all(torch.isfinite(x).all() for x in tensors.values()):
        raise InputError(f"adapter.start: {folder} has parameters that are NaN or infinite")
    peft.set_peft_model_state_dict(network, tensors)


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Return the parameters of the adapter in `folder`."""
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"adapter.start: {folder} has no {WEIGHTS}; `fedflat export RUN {folder}` writes one")
    try:
        found: dict[str, Tensor] = load(read_bytes(folder / WEIGHTS, MAX_BYTES))
    except (OSError, SafetensorError, KeyError, RuntimeError, TypeError) as error:
        raise InputError(f"adapter.start: {folder / WEIGHTS} is damaged: {error}") from error
    return found


def _check_scale(folder: Path, adapter: LoRA) -> None:
    """Raise InputError if the adapter in `folder` was trained with another rank or scale."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else None
    if not isinstance(config, dict):
        raise InputError(f"adapter.start: {folder} has no {CONFIG}")
    for field, key, value in (("r", "r", adapter.r), ("alpha", "lora_alpha", adapter.alpha)):
        if config.get(key) != value:
            raise InputError(f"adapter.{field} is {value}, and the adapter in {folder} has {config.get(key)}")


def export_adapter(network: Any, folder: Path, base: str | None = None) -> list[str]:
    """Write the adapter and the head of `network`, a `PeftModel`, into `folder`; return the names of the files.

    base: the repository on the hub that the network is from; by default `peft` writes the folder it was loaded from.
    """
    import peft  # here, because it is optional; `network` is made by it

    config = copy(network.peft_config["default"])
    config.inference_mode = True
    config.base_model_name_or_path = base or config.base_model_name_or_path
    config.target_modules = sorted(config.target_modules)  # a set has no order, and equal adapters make equal files
    state = peft.get_peft_model_state_dict(network, save_embedding_layers=False)  # else it may ask the hub
    tensors = {name: x.detach().cpu().contiguous() for name, x in state.items()}
    config.save_pretrained(str(folder))
    write_atomically(folder / WEIGHTS, lambda path: path.write_bytes(save(tensors)))
    return [CONFIG, WEIGHTS]

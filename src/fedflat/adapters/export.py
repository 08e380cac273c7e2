"""Writing an adapter as `peft` reads it."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

from safetensors.torch import save

from ..files import write_atomically
from .start import CONFIG, WEIGHTS


def export_adapter(network: Any, folder: Path) -> list[str]:
    """Write the adapter and the head of `network`, a `PeftModel`, into `folder`; the names of the files."""
    import peft  # here, because it is optional; `network` is made by it

    config = copy(network.peft_config["default"])
    config.inference_mode = True
    config.target_modules = sorted(config.target_modules)  # a set has no order, and equal adapters make equal files
    state = peft.get_peft_model_state_dict(network, save_embedding_layers=False)  # else it may ask the hub
    tensors = {name: x.detach().cpu().contiguous() for name, x in state.items()}
    config.save_pretrained(str(folder))
    write_atomically(folder / WEIGHTS, lambda path: path.write_bytes(save(tensors)))
    return [CONFIG, WEIGHTS]

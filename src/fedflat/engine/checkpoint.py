"""One file holds the state of a run between two rounds. Safetensors and JSON; nothing is ever unpickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import InputError
from ..files import write_atomically

FORMAT = 1


def save(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write `tensors` and the JSON-able `meta` to `path`, atomically."""
    on_host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = {"fedflat": json.dumps({"format": FORMAT, **meta})}
    write_atomically(path, lambda temporary: save_file(on_host, temporary, metadata=text))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `save` wrote. Raises ValueError, naming the file, if it is missing, damaged or of another format."""
    try:
        with safe_open(path, framework="pt") as file:
            meta = json.loads((file.metadata() or {})["fedflat"])
            # Cloned into memory that torch aligned: vector kernels round differently on the file's odd
            # addresses, and a resumed run would differ from an uninterrupted one in the last bit.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"checkpoint {path} cannot be read: {error}") from error
    if meta.get("format") != FORMAT:
        raise InputError(f"checkpoint {path} has format {meta.get('format')}, this version reads {FORMAT}")
    return tensors, meta

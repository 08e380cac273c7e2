"""The device that training runs on."""

from __future__ import annotations

import torch

from ..core.errors import InputError


def usable_device(name: str | torch.device) -> torch.device:
    """The device called `name`; `auto` is a GPU if there is one. Raises InputError if it cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # a device without memory of its own fails here
        return probe.device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device = {str(name)!r} cannot be used: {str(error).splitlines()[0]}") from error


def device_name(device: torch.device) -> str:
    """The name of a device for a user: of a GPU its model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)

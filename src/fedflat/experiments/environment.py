"""The versions, the machine and the settings that a run is computed with."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from ..rounds.segments import versions

if TYPE_CHECKING:
    from ..engine.simulation import Simulation

RECORDED = ("fedflat", "torch", "numpy", "scipy", "scikit-learn", "safetensors", "pyarrow")


def environment(sim: Simulation) -> dict[str, Any]:
    """Versions, machine, device and all settings that the rounds depend on, as values for a JSON file."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(RECORDED) | {"python": platform.python_version()},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "workers": sim.workers,
        "device": device_name(sim.device),
        "executor": {"name": sim.choice.name, "reason": sim.choice.reason, "seconds per step": sim.choice.seconds},
        "settings": sim.settings(),
    }


def device_name(device: torch.device) -> str:
    """The name of a device for a user: of a GPU its model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)

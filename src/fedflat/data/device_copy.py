"""Copies from the host to the device that training runs on."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(x: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """`x` of the host on `device`, without waiting for what the device still has to do.

    A GPU takes the copy after its earlier work, and torch sees to it that the host's memory is read first. Apple's
    device reads it later, so there the host waits.
    """
    return x.to(device, dtype or x.dtype, non_blocking=device.type != "mps")

"""How the numbers of tensors lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNED = 64  # bytes, as torch aligns its own tensors: vector kernels round differently on other addresses


def aligned(x: Tensor) -> Tensor:
    """`x` with its numbers side by side from an aligned address, as in shared memory; copied only if it is not so."""
    return x if x.is_contiguous() and x.data_ptr() % ALIGNED == 0 else x.clone(memory_format=torch.contiguous_format)

"""The rise of the loss at the first-order worst point of a ball."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.objective import Batch, Objective
from ...core.oracle import unit


def sharpness(objective: Objective, w: Tensor, batch: Batch, rho: float) -> float:
    """F(w + rho unit(grad F(w))) - F(w) at `w` (d,), F the mean loss on `batch`, rho in parameter units.

    FedLESAM's global sharpness (Fan et al., 2024) when `batch` holds the training data of all clients.
    """
    worst = w + rho * unit(objective.gradient(w, batch))
    with torch.no_grad():
        return float(objective.loss(worst, batch) - objective.loss(w, batch))

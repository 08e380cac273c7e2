"""How far clients move away from the model that they received."""

from __future__ import annotations

from torch import Tensor


def drift(local: Tensor, received: Tensor) -> Tensor:
    """||w_i - w^t|| of each client, (clients,), from the local models (clients, d) and the received one (d,)."""
    distances: Tensor = (local - received).norm(dim=-1)
    return distances

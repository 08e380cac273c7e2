"""What every party knows of a round."""

from __future__ import annotations

import torch

from ..core.method import Context
from ..core.space import Space
from .local_training import Client


class ContextFactory:
    """Makes a round's context, of what stays the same in all rounds and what does not."""

    def __init__(self, space: Space, client: Client, device: torch.device) -> None:
        self._client = client
        self._is_weight = space.is_weight(device)
        self._layers = tuple(layer for _, layer in space.layers())

    def of(self, t: int, share: float, sampled: int) -> Context:
        """Round `t`, in which `sampled` clients, a `share` of all, take part."""
        return Context(t, self._client.lr_at(t), share, is_weight=self._is_weight, layers=self._layers, sampled=sampled)

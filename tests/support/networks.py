"""Small networks in float64 with a landscape, and their dense Hessian by torch.func on the module's own parameters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import fedflat as ff
from fedflat.core.objective import Objective
from fedflat.metrics.flatness.subject import MEMORY, Landscape
from support.federation import federation, tanh_network


class Attention(nn.Module):
    """Three tokens of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value, self.out = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.unflatten(-1, (3, 2))
        keys = self.key(tokens)
        return self.out(scaled_dot_product_attention(keys, keys, self.value(tokens)).mean(1))


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.Softplus(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(8, 3)
    return nn.Sequential(*layers).double()


def attention() -> nn.Module:
    torch.manual_seed(0)
    return Attention().double()


NETWORKS = {"dense": tanh_network, "convolutions": convolutions, "attention": attention}


def landscape(
    network: nn.Module, data: ff.FederatedData | None = None, memory: int = MEMORY
) -> tuple[Landscape, Tensor]:
    """The loss on all samples of the federation, and the network's parameters."""
    objective = Objective(network)
    w = objective.space.flatten(network)
    data = (data or federation()).to(w.device, w.dtype)
    return Landscape(objective, data, data.members, memory), w


def dense_hessian(network: nn.Module, x: Tensor, y: Tensor) -> np.ndarray:
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    blocks = torch.func.hessian(lambda p: cross_entropy(functional_call(network, p, (x,)), y))(parameters)
    rows = [torch.cat([blocks[a][b].reshape(parameters[a].numel(), -1) for b in parameters], dim=1) for a in parameters]
    return torch.cat(rows).numpy()

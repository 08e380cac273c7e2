"""A federation with real minibatches, uneven clients and partial participation, in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedflat as ff
from fedflat.core.method import Method
from fedflat.rounds.randomness import seed_torch


def federation(sizes: tuple[int, ...] = (5, 12, 3, 8, 1, 9), seed: int = 0, test: int = 20) -> ff.FederatedData:
    """Clients of uneven size with shifted inputs; three classes."""
    rng = np.random.default_rng(seed)
    clients = [(rng.normal(i / 4, 1, (n, 6)), rng.integers(3, size=n)) for i, n in enumerate(sizes)]
    return ff.FederatedData.from_clients(
        clients, test=(rng.normal(0, 1, (test, 6)), rng.integers(3, size=test)), classes=3
    )


def tanh_network(seed: int = 0) -> nn.Module:
    seed_torch(seed)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def simulation(method: Method, **changes) -> ff.Simulation:
    """Four rounds of three in six clients, two epochs of batches of four: uneven numbers of local steps."""
    client = {"lr": 0.1, "lr_decay": 0.95, "epochs": 2, "batch_size": 4} | changes.pop("client", {})
    settings = {"model": tanh_network(), "data": federation(), "rounds": 4, "participation": 3} | changes
    return ff.Simulation(method=method, client=ff.Client(**client), **settings)


def final_w(method: Method, **changes) -> torch.Tensor:
    sim = simulation(method, **changes)
    for _ in sim:
        pass
    return sim.w


def whole_and_resumed(
    make: Callable[[], ff.Simulation], rounds: int, folder: Path
) -> tuple[ff.Simulation, ff.Simulation]:
    """Two simulations at their end, of which the second begins with the checkpoint of another after some rounds."""
    whole, first, resumed = (make() for _ in range(3))
    for _ in range(rounds):
        first.round()
    first.save(folder / "state.safetensors")
    resumed.load(folder / "state.safetensors")
    for sim in (whole, resumed):
        for _ in sim:
            pass
    return whole, resumed

"""Small federations whose samples have a label at each position, and models for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import fedflat as ff
from fedflat.core.method import Method
from fedflat.core.task import IGNORED, Kind
from fedflat.models import build

SIZES = (5, 3, 8, 4)  # samples of clients
CLASSES = 4
SHAPES: dict[Kind, tuple[int, ...]] = {"next-token": (6,), "segmentation": (1, 5, 4)}


def samples(kind: Kind, number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples with random labels, a third of them ignored, but the first of each sample never."""
    rng, shape = np.random.default_rng(seed), (number, *SHAPES[kind])
    x = rng.integers(CLASSES, size=shape) if kind == "next-token" else rng.normal(size=shape).astype(np.float32)
    y = rng.integers(CLASSES, size=shape if kind == "next-token" else (number, *shape[2:]))
    y[rng.random(y.shape) < 1 / 3] = IGNORED
    y.reshape(number, -1)[:, 0] = 1
    return x, y


def federation(kind: Kind, sizes: tuple[int, ...] = SIZES, **options) -> ff.FederatedData:
    clients = [samples(kind, size, seed) for seed, size in enumerate(sizes)]
    return ff.FederatedData.from_clients(clients, test=samples(kind, 7, 99), classes=CLASSES, task=kind, **options)


def network(kind: Kind, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    if kind == "next-token":
        return build("causal-transformer", CLASSES, SHAPES[kind], width=4, layers=1, heads=2).to(dtype)
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, CLASSES, 1)).to(dtype)


def simulation(kind: Kind, method: Method | None = None, **changes) -> ff.Simulation:
    """Three rounds of three in four clients with uneven numbers of steps."""
    dtype = changes.pop("dtype", torch.float64)
    settings = {
        "model": network(kind, dtype), "data": federation(kind), "method": method or ff.methods.FedSAM(rho=0.05),
        "rounds": 3, "participation": 3, "workers": 1, "client": ff.Client(lr=0.1, epochs=2, batch_size=3),
    }  # fmt: skip
    return ff.Simulation(dtype=dtype, **settings | changes)

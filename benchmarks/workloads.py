"""The workloads: made-up data of the shapes that the papers and other frameworks train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedflat import models
from fedflat.data.federated import FederatedData
from fedflat.data.preparation import AUGMENTATIONS, Preparation
from fedflat.rounds.local_training import Client

CLASSES = 10
CIFAR = Preparation(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616))  # for pictures that are augmented


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A round of local training: who trains what, on how much.

    Where a round is long, only `timed` of its clients are trained, and the time is multiplied.
    """

    title: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...]  # of one sample
    clients: int  # in all
    samples: int  # of each client
    pool: int  # distinct samples, which clients share where there are fewer than they hold
    cohort: int  # clients per round
    steps: int  # local steps of each
    batch: int
    timed: int  # clients that are trained for one time
    timed_bare: int | None = None  # the same for the plain loops, if it is another number
    rounds: int = 1  # rounds in one time, where a round is too short for the clock
    pictures: bool = False  # samples are bytes, augmented as FL-Simulator does; weight decay and clipping as there

    def settings(self) -> dict[str, Any]:
        """Return what the work is, as JSON-able values."""
        with torch.device("meta"):  # no memory and no random numbers
            model = models.build(self.model, CLASSES, self.shape, **self.options)
        return asdict(self) | {"parameters": sum(p.numel() for p in model.parameters())}

    def module(self) -> nn.Module:
        """Return the model, with weights that depend on nothing."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return models.build(self.model, CLASSES, self.shape, **self.options)

    def client(self) -> Client:
        """Return the local training of every client."""
        decay, bound = (1e-3, 10.0) if self.pictures else (0.0, inf)  # FL-Simulator's
        return Client(lr=0.01, steps=self.steps, batch_size=self.batch, weight_decay=decay, max_norm=bound)

    def data(self, tested: bool = False) -> FederatedData:
        """Return noise, with labels that mean nothing; a test set of 10,000 samples only if it is asked for."""
        x, y = noise(self.pool, self.shape, self.pictures)
        return FederatedData(
            x,
            y,
            *shared(self.clients, self.samples, self.pool),
            classes=CLASSES,
            test=noise(10_000, self.shape, self.pictures) if tested else None,
            name="made up",
            preparation=CIFAR if self.pictures else Preparation(),
            augmentation=AUGMENTATIONS["fl-simulator"] if self.pictures else None,
        )


@lru_cache(maxsize=2)
def noise(n: int, shape: tuple[int, ...], pictures: bool) -> tuple[Tensor, Tensor]:
    """Return `n` samples, bytes or floats, with their labels; the same memory for everybody who asks for the same."""
    random = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (n,), generator=random)
    if pictures:
        return torch.randint(256, (n, *shape), generator=random, dtype=torch.uint8), y
    return torch.randn(n, *shape, generator=random), y


def shared(clients: int, samples: int, pool: int) -> tuple[np.ndarray, np.ndarray]:
    """Return members and offsets of clients with `samples` samples each, one after another around a pool of `pool`.

    Nobody holds a sample twice if `samples` is at most `pool`.
    """
    members = np.resize(np.arange(pool, dtype=np.int32), clients * samples)
    return members, np.arange(clients + 1, dtype=np.int64) * samples


LENET = Workload(title="LeNet on 3x32x32", model="lenet", shape=(3, 32, 32), clients=100, samples=500, pool=10_000,
             cohort=10, steps=8, batch=64, timed=2)  # fmt: skip
DIGITS = Workload(title="logistic regression 64-10", model="mlp", options={"hidden": ()}, shape=(64,), clients=100,
              samples=16, pool=1600, cohort=10, steps=10, batch=8, timed=10, rounds=50)  # fmt: skip

WORKLOADS: dict[str, Workload] = {
    "W1": LENET,
    "W1a": replace(LENET, title="W1 as FL-Simulator trains: augmentation, weight decay, clipping", pictures=True),
    "W2": Workload(title="MLP 784-200-10", model="mlp", options={"hidden": (200,)}, shape=(1, 28, 28), clients=100,
               samples=600, pool=60_000, cohort=10, steps=300, batch=10, timed=10),
    "W3": DIGITS,
    "W3-mlp": replace(DIGITS, title="MLP 64-64-10", options={"hidden": (64,)}),
    "W4": replace(LENET, title="ResNet-18-GN, CIFAR stem", model="resnet18-gn-cifar", steps=3, batch=50, timed=1),
    "W4p": replace(LENET, title="ResNet-18-GN, ImageNet stem, as in the papers", model="resnet18-gn", steps=10,
                   batch=50, timed=1),
    "W5": replace(DIGITS, title="logistic regression 64-10, many clients", clients=20_000, pool=320_000, cohort=10_000,
                  steps=5, timed=10_000, timed_bare=100, rounds=1),
}  # fmt: skip

# What --quick shortens, so that no work takes more than a minute or two.
SHORTER: dict[str, dict[str, Any]] = {
    "W1": {"timed": 1},
    "W1a": {"timed": 1},
    "W3": {"rounds": 10},
    "W3-mlp": {"rounds": 10},
    "W4": {"steps": 1},
    "W4p": {"steps": 3},
}


def workloads(quick: bool) -> dict[str, Workload]:
    """Return the workloads by name; a few local steps or clients less if it is to be quick."""
    return {name: replace(work, **SHORTER.get(name, {})) if quick else work for name, work in WORKLOADS.items()}

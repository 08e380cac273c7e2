"""A user's file with a method, a model, a data set, a partition and a measure of their own, and a study of them."""

from __future__ import annotations

from pathlib import Path

OWN = '''
import numpy as np
from torch import nn

from fedflat.core.method import hyper
from fedflat.data.partition import Partition
from fedflat.methods.fedsam import FedSAM
from fedflat.metrics.flatness import Finding, Measure, Measured


class Mine(FedSAM):
    """FedSAM with a radius that is scaled."""

    scale: float = hyper(2.0, "factor of the radius", low=0)

    def step(self, w, client, down, grad, ctx):
        return FedSAM(rho=self.scale * self.rho).step(w, client, down, grad, ctx)


class Turns(Partition):
    """Samples in turns, like cards; those of the first `kept` clients stay with client 0."""

    kept: int = hyper(1, "clients", low=1)

    def split(self, samples, clients, rng):
        owner = np.arange(len(samples)) % clients
        owner[owner < self.kept] = 0
        owner[: clients] = np.arange(clients)
        return [np.flatnonzero(owner == client) for client in range(clients)]


class Length(Measure):
    """The norm of the model."""

    def measure(self, subject, progress=None):
        return Finding("length", "Length: of the parameters", {"length": Measured(float(subject.w.norm()))})


def net(classes, shape, hidden=6):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), hidden), nn.Tanh(), nn.Linear(hidden, classes))


def blobs():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=240)
    x = (rng.normal(size=(240, 5)) + y[:, None]).astype("float32")
    return (x[:200], y[:200]), (x[200:], y[200:])
'''
STUDY = """
methods = [{ name = "fedsam", rho = 0.05 }, { name = "own.py:Mine", rho = 0.1, scale = 0.5 }]
seeds = [0, 1]
rounds = 4
participation = 0.5
checkpoint_every = 2
executor = "sequential"
data = { name = "own.py:blobs", clients = 6 }
partition = { name = "own.py:Turns", kept = 2 }
model = { name = "own.py:net", options = { hidden = 4 } }
client = { lr = 0.2, steps = 4, batch_size = 8 }
flatness = ["own.py:Length"]
"""


def write_own_code(folder: Path) -> Path:
    """Write own.py and own.toml, a study whose every part is in it; returns the latter."""
    (folder / "own.py").write_text(OWN)
    (folder / "own.toml").write_text(STUDY)
    return folder / "own.toml"

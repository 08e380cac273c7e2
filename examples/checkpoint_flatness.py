"""How flat is a checkpoint of your own? Two models of plain PyTorch loops, measured at the same samples.

    python examples/checkpoint_flatness.py

The package has trained neither model: any module whose weights you can load, and your training samples, are enough.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy

import fedflat as ff

rng = np.random.default_rng(0)
y = rng.integers(3, size=600)
x = (rng.normal(size=(600, 4)) + 2 * np.eye(4)[y]).astype("float32")


def network():
    """Return the network of the checkpoints."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))


def train(lr, file):
    """Train by SGD with this step size, and write a checkpoint."""
    model, samples, labels = network(), torch.from_numpy(x), torch.from_numpy(y)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(300):
        batch = torch.randint(len(y), (32,))
        optimizer.zero_grad()
        cross_entropy(model(samples[batch]), labels[batch]).backward()
        optimizer.step()
    save_file(model.state_dict(), file)


Path("checkpoints").mkdir(exist_ok=True)
data = ff.FederatedData.split(x, y, clients=1, test=0.2, seed=0)  # the training samples are those of one client
for lr in (0.05, 0.5):
    train(lr, file := f"checkpoints/lr{lr}.safetensors")
    model = network()
    model.load_state_dict(load_file(file))
    print(file, ff.flatness(model, data, ["eigenvalues", "trace", "sharpness"]), sep="\n")

"""Your own arrays and your own model: clients of different sizes, two methods, one report.

    python examples/own_data.py

Replace `site` by what reads your samples: x of any shape (n, ...), y class indices (n,).
"""

import numpy as np
import torch
from torch import nn

import fedflat as ff

rng = np.random.default_rng(0)


def site(samples, shift):
    """Return samples of three classes, measured with an offset of the site's own."""
    y = rng.integers(3, size=samples)
    x = rng.normal(size=(samples, 4)) + 2 * np.eye(4)[y] + shift
    return x.astype("float32"), y


sites = [site(samples, shift) for samples, shift in [(40, 0.0), (80, 0.5), (160, -0.5), (320, 1.0)]]
data = ff.FederatedData.from_clients(sites, test=site(500, 0.25), name="four sites")
print(data, data.counts(), sep="\n")  # samples of each client and class

torch.manual_seed(0)  # of the initial weights
model = nn.Sequential(nn.Linear(4, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 3))
client = ff.Client(lr=0.1, epochs=2, batch_size=20)
runs = []
for method in (ff.methods.FedAvg(), ff.methods.FedSAM(rho=0.1)):
    sim = ff.Simulation(model, data, method, client, rounds=10, last=1, weights="samples")
    runs.append(sim.run(flatness=["eigenvalues", "sharpness"]))

comparison = ff.compare(runs)
print(comparison)
print(comparison.to_html("runs/own_data.html"))

x, y = site(5, 0.0)
print(runs[-1].predict(x, classes=True), y)  # new samples, as they were given for training

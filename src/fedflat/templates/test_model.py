"""The model gives a score for each class, and trains."""

from __future__ import annotations

import torch
from model import example

import fedflat as ff


def test_scores_have_one_column_for_each_class() -> None:
    assert example(classes=3, shape=(2, 4))(torch.zeros(5, 2, 4)).shape == (5, 3)


def test_it_trains() -> None:
    data = ff.data.load("digits", clients=5)
    sim = ff.Simulation(example(classes=10, shape=data.shape), data, ff.methods.FedAvg(), ff.Client(epochs=1), rounds=2)
    before = sim.w.clone()
    assert not torch.equal(sim.run().w, before)

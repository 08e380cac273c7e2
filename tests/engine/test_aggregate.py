from __future__ import annotations

import torch

from fedflat.core.records import Record, Vector, uniform_mean
from fedflat.engine.aggregate import RunningMean
from fedflat.methods import find


class Up(Record):
    a: Vector
    b: Vector = uniform_mean()


class Averaging(find("FedAvg"), mean=Up):
    pass


def test_chunks_add_up_to_the_weighted_and_the_equal_mean() -> None:
    x, weights = torch.randn(5, 3).double(), torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25]).double()[:, None]
    steps = torch.arange(1.0, 6.0).double()[:, None]
    mean = RunningMean(Averaging(), x[0], 5)
    for part in (slice(0, 2), slice(2, 5)):
        mean.add(Up(x[part], x[part]), steps[part], weights[part])
    torch.testing.assert_close(mean.value().a, (weights * x).sum(0))
    torch.testing.assert_close(mean.value().b, x.mean(0))
    torch.testing.assert_close(mean.steps, (weights * steps).sum(0))

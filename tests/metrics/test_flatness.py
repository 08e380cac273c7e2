"""Against independent references: a dense Hessian, a closed form, plain PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import fedflat as ff
from fedflat.core.objective import Batch, Objective
from fedflat.metrics.flatness import pooled_batch
from fedflat.metrics.flatness.eigenvalue import lambda_max
from fedflat.metrics.flatness.hessian import hessian_product
from support.federation import federation, tanh_network


def dense_hessian(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """By torch.func on the module's own parameters, without our flat space."""
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    blocks = torch.func.hessian(lambda p: cross_entropy(functional_call(network, p, (x,)), y))(parameters)
    rows = [torch.cat([blocks[a][b].reshape(parameters[a].numel(), -1) for b in parameters], dim=1) for a in parameters]
    return torch.cat(rows)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lambda_max_is_that_of_the_dense_hessian(dtype: torch.dtype) -> None:
    network, data = tanh_network().to(dtype), federation()
    values = ff.flatness(network, data)
    expected = torch.linalg.eigvalsh(dense_hessian(tanh_network(), data.x, data.y))[-1]
    assert values["lambda_max"] == pytest.approx(float(expected), rel=1e-4)
    assert values["lambda_max_residual"] <= 1e-2 * values["lambda_max"]


def test_the_largest_eigenvalue_is_meant_not_the_largest_in_size() -> None:
    """At a saddle whose most negative eigenvalue dominates, the algebraically largest is reported."""
    network = tanh_network(2)
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(3)
    data = federation()
    values = torch.linalg.eigvalsh(dense_hessian(network, data.x, data.y))
    assert ff.flatness(network, data)["lambda_max"] == pytest.approx(float(values[-1]), rel=1e-4)


def test_a_dead_network_is_flat() -> None:
    network = tanh_network()
    objective = Objective(nn.Sequential(network, nn.Hardshrink(1e9)))
    data = federation()
    w = objective.space.flatten(objective.module)
    assert lambda_max(objective, w, Batch(data.x, data.y)) == (0.0, 0.0)


def test_sharpness_against_plain_pytorch() -> None:
    network, data, rho = tanh_network(), federation(), 0.3
    loss = cross_entropy(network(data.x), data.y)
    gradient = torch.autograd.grad(loss, list(network.parameters()))
    length = torch.sqrt(sum((g**2).sum() for g in gradient))
    with torch.no_grad():
        for p, g in zip(network.parameters(), gradient, strict=True):
            p.add_(rho * g / length)
        expected = float(cross_entropy(network(data.x), data.y) - loss)
    assert ff.flatness(tanh_network(), data, ["sharpness"], rho=rho) == {"sharpness": pytest.approx(expected, rel=1e-9)}


def test_hessian_goes_through_fused_attention() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.value, self.out = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = x.unflatten(-1, (3, 2))
            keys = self.key(tokens)
            return self.out(scaled_dot_product_attention(keys, keys, self.value(tokens)).mean(1))

    torch.manual_seed(0)
    objective, data = Objective(Attention().double()), federation()
    w = objective.space.flatten(objective.module)
    v, h = torch.randn_like(w), 1e-5
    batch = Batch(data.x, data.y)
    numeric = (objective.gradient(w + h * v, batch) - objective.gradient(w - h * v, batch)) / (2 * h)
    torch.testing.assert_close(hessian_product(objective, w, batch)(v), numeric, rtol=1e-5, atol=1e-8)


def test_the_model_is_measured_in_evaluation_mode_and_left_alone() -> None:
    network = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).double()
    before = [p.clone() for p in network.parameters()]
    one, other = (ff.flatness(network, federation()) for _ in "ab")
    assert one == other
    assert network.training
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_the_subset_is_fixed_evenly_spaced_and_of_the_clients_samples() -> None:
    data = federation()
    assert len(pooled_batch(data).y) == len(data.members)
    some = pooled_batch(data, max_samples=10)
    assert np.array_equal(some.y, data.y[data.members[::4]])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown flatness metric 'trace'; known are lambda_max, sharpness"):
        ff.flatness(tanh_network(), federation(), ["lambda_max", "trace"])
    with pytest.raises(ValueError, match="metrics must be a list of names"):
        ff.flatness(tanh_network(), federation(), "lambda_max")
    with pytest.raises(ValueError, match="flatness needs rho >= 0 and max_samples >= 1, got -1 and 2000"):
        ff.flatness(tanh_network(), federation(), rho=-1)
    broken = tanh_network()
    broken[0].bias.data[0] = float("nan")
    with pytest.raises(ValueError, match="parameters that are NaN or infinite"):
        ff.flatness(broken, federation())

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.metrics.flatness.measures.adaptive_sharpness import AdaptiveSharpness
from fedflat.metrics.flatness.measures.sharpness import Sharpness
from support.federation import federation, tanh_network
from support.quadratic_clients import bowls, measured, orthogonal


@pytest.mark.parametrize("eta", [0.0, 0.2])
def test_first_order_point_on_a_quadratic(eta: float) -> None:
    """delta = rho T^2 g / ||T g|| with T = |w| + eta (Kwon et al., 2021, eq. 3)."""
    b, rho = bowls(), 0.4
    g, T = b.pooled_gradient(b.w), np.abs(b.w) + eta
    delta = rho * T**2 * g / np.linalg.norm(T * g)
    (found,) = measured(b.subject, AdaptiveSharpness(rho=rho, eta=eta)).values()
    assert found.value == pytest.approx(g @ delta + delta @ b.H @ delta / 2, rel=1e-10)


def test_more_steps_climb_inside_the_scaled_ball() -> None:
    """Against many random points of the ball: none is higher, and the first-order point is lower."""
    b, rho = bowls(), 0.4
    one, many = (next(iter(measured(b.subject, AdaptiveSharpness(rho=rho, steps=k)).values())).value for k in (1, 60))
    e = np.random.default_rng(0).normal(size=(20_000, 4))
    delta = np.abs(b.w) * rho * e / np.linalg.norm(e, axis=1, keepdims=True)
    rises = delta @ b.pooled_gradient(b.w) + ((delta @ b.H) * delta).sum(1) / 2
    assert one < many
    assert rises.max() <= many * (1 + 1e-9)
    assert rises.max() == pytest.approx(many, rel=1e-2)


def relu_network(factor: float = 1.0) -> nn.Module:
    """With what comes into the second ReLU layer times `factor` and what leaves it divided: the same function."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for p in network[2].parameters():
            p.mul_(factor)
        network[4].weight.div_(factor)
    return network


def value(network: nn.Module, measure: ff.metrics.flatness.Measure) -> float:
    (found,) = ff.flatness(network, federation(), [measure]).values()
    return found.value


@pytest.mark.parametrize("steps", [1, 5])
def test_rescaling_relu_layers_changes_nothing(steps: int) -> None:
    adaptive = AdaptiveSharpness(steps=steps)
    assert value(relu_network(10.0), adaptive) == pytest.approx(value(relu_network(), adaptive), rel=1e-8)


def test_rescaling_relu_layers_changes_the_other_forms() -> None:
    for other in (Sharpness(), AdaptiveSharpness(eta=0.2), AdaptiveSharpness(biases="one")):
        assert abs(value(relu_network(10.0), other) / value(relu_network(), other) - 1) > 0.02


def test_the_scaled_ball_is_not_round() -> None:
    b = bowls()
    plain, turned = (measured(x.subject, AdaptiveSharpness()) for x in (b, b.rotated(orthogonal(4))))
    assert abs(turned["adaptive_sharpness"].value / plain["adaptive_sharpness"].value - 1) > 0.05


def test_biases_of_size_one_as_fedasam_has_them() -> None:
    """Plain PyTorch: T = |w| + eta where the name says weight, 1 elsewhere."""
    network, data, rho, eta = tanh_network(), federation(), 0.3, 0.2
    lossof = lambda: nn.functional.cross_entropy(network(data.x), data.y)  # noqa: E731
    named = dict(network.named_parameters())
    gradient = dict(zip(named, torch.autograd.grad(lossof(), list(named.values())), strict=True))
    T = {name: p.detach().abs() + eta if "weight" in name else torch.ones_like(p) for name, p in named.items()}
    length = torch.sqrt(sum(((T[name] * gradient[name]) ** 2).sum() for name in named))
    with torch.no_grad():
        before = lossof()
        for name, p in named.items():
            p.add_(rho * T[name] ** 2 * gradient[name] / length)
        expected = float(lossof() - before)
    assert value(tanh_network(), AdaptiveSharpness(rho=rho, eta=eta, biases="one")) == pytest.approx(expected, rel=1e-9)

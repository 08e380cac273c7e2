from __future__ import annotations

import numpy as np
import pytest

from fedflat.methods import FedAvg, FedLESAM, FedSAM, FedVSSAM
from fedflat.metrics.flatness import measure
from fedflat.metrics.flatness.measures.flatness_incompatibility import FlatnessIncompatibility
from support.quadratic_clients import Bowls, bowls, measured, orthogonal

RHO = 0.3
ALONG_METHOD = FlatnessIncompatibility(rho=RHO, direction="method")


def alone(b: Bowls, **settings) -> float:
    (found,) = measured(b.subject, FlatnessIncompatibility(rho=RHO, **settings)).values()
    assert found.error is None
    return found.value


def variance(b: Bowls, directions: dict[int, np.ndarray]) -> float:
    """The population variance of s_i = rho u' g_i + rho^2 u' A_i u / 2."""
    s = []
    for i, d in directions.items():
        u = d / np.linalg.norm(d)
        s.append(RHO * u @ b.gradient(i, b.w) + RHO**2 * u @ b.A[i] @ u / 2)
    return np.mean((np.array(s) - np.mean(s)) ** 2)


def test_along_each_clients_gradient() -> None:
    b = bowls(clients=4, sizes=(3, 1, 2, 5))
    expected = variance(b, {i: b.gradient(i, b.w) for i in range(4)})
    assert expected > 1e-3
    assert alone(b) == pytest.approx(expected, rel=1e-9)
    assert alone(b.rotated(orthogonal(4))) == pytest.approx(expected, rel=1e-9)


def test_like_clients_are_compatible() -> None:
    b = bowls()
    b.A, b.m = b.A[[0, 0, 0]], b.m[[0, 0, 0]]
    assert alone(b) < 1e-28


def test_some_clients_are_evenly_spaced_and_the_same_for_every_model() -> None:
    for seed in (0, 1):
        b = bowls(clients=7, seed=seed)
        expected = variance(b, {i: b.gradient(i, b.w) for i in (0, 2, 4)})
        assert alone(b, clients=3) == pytest.approx(expected, rel=1e-9)


def test_one_client_has_no_variance() -> None:
    assert not measure(bowls(clients=1).subject, [FlatnessIncompatibility()])


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_along_fedvssams_adjusted_direction(executor: str) -> None:
    """Fig. 8: d_i = (1 - gamma_l) h + gamma_l g_i, whoever is next."""
    b, gamma = bowls(), 0.3
    sim = b.simulation(FedVSSAM(rho=0.2, gamma_l=gamma), executor=executor, participation=[[0, 1], [2]], rounds=2)
    sim.round()
    b.w, h = sim.w.numpy(), sim.server.h.numpy()
    assert np.linalg.norm(h) > 0.1
    expected = variance(b, {i: (1 - gamma) * h + gamma * b.gradient(i, b.w) for i in range(3)})
    (found,) = sim.flatness([ALONG_METHOD]).values()
    assert found.value == pytest.approx(expected, rel=1e-8)


def test_along_fedsams_perturbation_it_is_the_definition() -> None:
    b = bowls()
    (found,) = b.simulation(FedSAM(rho=0.2)).flatness([ALONG_METHOD]).values()
    assert found.value == pytest.approx(alone(b), rel=1e-8)


def test_clients_that_are_not_perturbed_are_left_out() -> None:
    """FedLESAM looks back to the model of a client's last round; client 3 had none."""
    b = bowls(clients=4)
    assert not b.simulation(FedAvg()).flatness([ALONG_METHOD])
    sim = b.simulation(FedLESAM(), participation=[[0, 1], [1, 2], [0]], rounds=3)
    assert not sim.flatness([ALONG_METHOD])
    models = []
    for _ in range(2):
        models.append(sim.w.numpy())
        sim.round()
    b.w = sim.w.numpy()
    (found,) = sim.flatness([ALONG_METHOD]).values()
    expected = variance(b, {i: models[last] - b.w for i, last in enumerate((0, 1, 1))})
    assert found.value == pytest.approx(expected, rel=1e-8)


def test_the_methods_direction_needs_a_round() -> None:
    with pytest.raises(ValueError, match="measure a run, not a model alone"):
        measure(bowls().subject, [ALONG_METHOD])

from __future__ import annotations

import numpy as np
import pytest

import fedflat as ff
from fedflat.methods import FedAvg, FedSAM, FedVSSAM
from fedflat.metrics.flatness.measures.tracking_error import TrackingError
from support.quadratic_clients import LR, bowls, orthogonal, unit


def tracking(sim: ff.Simulation, **settings) -> tuple[float, float]:
    error, cosine = sim.flatness([TrackingError(**settings)]).values()
    return error.value, cosine.value


def test_one_full_step_of_all_follows_the_gradient() -> None:
    error, cosine = tracking(bowls(sizes=(2, 2, 2)).simulation(FedAvg(), steps=1))
    assert error < 1e-24
    assert cosine == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_closed_form_for_uneven_local_work(executor: str) -> None:
    """h = mean_i (w - w_i) / (lr mean_i K_i), from the cohort; the gradient is everybody's."""
    b, steps = bowls(sizes=(1, 4, 2)), {0: 1, 2: 2}
    sim = b.simulation(FedAvg(), steps=None, executor=executor, participation=[[0, 2]], rounds=1)
    h = np.mean([b.w - b.path(i, K)[0][-1] for i, K in steps.items()], axis=0) / (LR * 1.5)
    g = b.pooled_gradient(b.w)
    assert tracking(sim) == pytest.approx((((h - g) ** 2).sum(), unit(h) @ unit(g)), rel=1e-9)
    turned = b.rotated(orthogonal(4)).simulation(FedAvg(), steps=None, participation=[[0, 2]], rounds=1)
    assert tracking(turned) == pytest.approx((((h - g) ** 2).sum(), unit(h) @ unit(g)), rel=1e-9)


def test_for_fedvssam_it_is_its_h() -> None:
    b = bowls()
    sim = b.simulation(FedVSSAM(), rounds=3)
    sim.round()
    w = sim.w.numpy()
    found = tracking(sim)
    sim.round()
    h, g = sim.server.h.numpy(), b.pooled_gradient(w)
    assert found == pytest.approx((((h - g) ** 2).sum(), unit(h) @ unit(g)), rel=1e-9)


def test_the_servers_rate_does_not_turn_its_step() -> None:
    (_, one), (_, other) = (tracking(bowls().simulation(FedSAM(server_lr=rate))) for rate in (1.0, 0.25))
    assert other == pytest.approx(one, rel=1e-9)


def test_batches_are_the_same_for_every_model() -> None:
    """Two batches of two from seven samples, drawn with the seed, at two models."""
    for seed in (0, 1):
        b = bowls(sizes=(4, 1, 2), seed=seed)
        owners = np.repeat([0, 1, 2], b.sizes)[np.random.default_rng(5).integers(7, size=4)]
        g = np.mean([b.gradient(i, b.w) for i in owners], axis=0)
        h = np.mean([b.w - b.path(i, 3)[0][-1] for i in range(3)], axis=0) / (3 * LR)
        error, cosine = tracking(b.simulation(FedAvg()), batches=2, batch_size=2, seed=5)
        assert error == pytest.approx(((h - g) ** 2).sum(), rel=1e-9)
        assert cosine == pytest.approx(unit(h) @ unit(g), rel=1e-9)


def test_defaults_are_the_papers_batches() -> None:
    assert (TrackingError().batches, TrackingError().batch_size) == (10, 512)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedflat as ff
from fedflat.core.method import Method
from fedflat.methods import SWA, FedAvg, FedSAM, FedVSSAM
from fedflat.metrics.flatness.measures.tracking_error import TrackingError
from support.quadratic_clients import LR, Bowls, bowls, orthogonal, unit


def tracking(sim: ff.Simulation, rounds: int = 1, **settings) -> tuple[float, float]:
    for _ in range(rounds):
        sim.round()
    error, cosine = sim.flatness([TrackingError(**settings)]).values()
    return error.value, cosine.value


def compared(h: np.ndarray, g: np.ndarray) -> object:
    return pytest.approx((((h - g) ** 2).sum(), unit(h) @ unit(g)), rel=1e-9)


def test_after_one_full_step_of_all_it_is_the_change_of_the_gradient() -> None:
    """h^1 = grad F(w^0) on a quadratic: h^1 - grad F(w^1) = H (w^0 - w^1) = lr H grad F(w^0)."""
    b = bowls(sizes=(2, 2, 2))
    error, _ = tracking(b.simulation(FedAvg(), steps=1))
    assert error == pytest.approx(((LR * b.H @ b.pooled_gradient(b.w)) ** 2).sum(), rel=1e-9)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_closed_form_for_uneven_local_work(executor: str) -> None:
    """h = mean_i (w - w_i) / (lr mean_i K_i), from the last cohort; the gradient is everybody's, where that led."""
    b, steps = bowls(sizes=(1, 4, 2)), {0: 1, 2: 2}
    sim = b.simulation(FedAvg(), steps=None, executor=executor, participation=[[0, 2], [1]], rounds=2)
    after = np.mean([b.path(i, K)[0][-1] for i, K in steps.items()], axis=0)
    expected = compared((b.w - after) / (LR * 1.5), b.pooled_gradient(after))
    assert tracking(sim) == expected
    turned = b.rotated(orthogonal(4)).simulation(FedAvg(), steps=None, participation=[[0, 2], [1]], rounds=2)
    assert tracking(turned) == expected


def fedvssam(b: Bowls, method: FedVSSAM, steps: int, rounds: int, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """h^T and theta^T by the paper's lines, all clients in every round: theta <- theta - rate h."""
    theta, h = b.w, np.zeros_like(b.w)
    for _ in range(rounds):
        sent = []
        for i in range(len(b.sizes)):
            w = theta
            for _ in range(steps):
                a = (1 - method.gamma_l) * h + method.gamma_l * b.gradient(i, w)
                fresh = b.gradient(i, w + method.rho * unit(a))
                w = w - LR * ((1 - method.gamma_l) * h + method.gamma_l * fresh)
            sent.append((theta - w) / (LR * steps))
        h = (1 - method.gamma_g) * h + method.gamma_g * np.mean(sent, axis=0)
        theta = theta - rate * h
    return h, theta


@pytest.mark.parametrize(
    ("mode", "server_lr", "rate"), [("absolute", 0.5, 0.5), ("relative", 1.0, 3 * LR), ("relative", 0.25, 0.75 * LR)]
)
def test_for_fedvssam_it_is_the_papers_h(mode: str, server_lr: float, rate: float) -> None:
    b, method = bowls(), FedVSSAM(rho=0.2, server_lr=server_lr, server_lr_mode=mode)
    h, theta = fedvssam(b, method, 3, 4, rate)
    sim = b.simulation(method)
    assert tracking(sim, rounds=4) == compared(h, b.pooled_gradient(theta))
    assert sim.server.h.numpy() == pytest.approx(h, rel=1e-9)


@pytest.mark.parametrize("method", [FedAvg(server_lr=0.25), SWA(base=FedSAM(server_lr=0.25), begin=0, cycle=1)])
def test_the_servers_rate_is_not_in_the_direction(method: Method) -> None:
    """Two rounds of one full step of all, with a quarter of the rate; SWA's average is not what is trained."""
    b, rho = bowls(sizes=(2, 2, 2)), getattr(method, "rho", 0.0)
    w = b.w
    for _ in range(2):
        h = np.mean([b.gradient(i, w + rho * unit(b.gradient(i, w))) for i in range(3)], axis=0)
        w = w - 0.25 * LR * h
    assert tracking(b.simulation(method, steps=1, rounds=4), rounds=2) == compared(h, b.pooled_gradient(w))


def test_before_the_first_round_there_is_no_direction() -> None:
    found = bowls().simulation(FedAvg()).flatness(["tracking-error"])
    assert len(found) == 0
    assert "tracking" in found.findings[0].measure.lower()


def test_a_state_that_is_loaded_has_the_same_value(tmp_path: Path) -> None:
    b = bowls()
    sim, again = (b.simulation(FedSAM(rho=0.2), rounds=4) for _ in range(2))
    expected = tracking(sim, rounds=2)
    sim.save(tmp_path / "state")
    again.load(tmp_path / "state")
    assert tracking(again, rounds=0) == expected
    sim.round()
    assert tracking(again, rounds=1) == tracking(sim, rounds=0) != expected


def test_batches_are_the_same_for_every_model() -> None:
    """Two batches of two from seven samples, drawn with the seed, at two models."""
    for seed in (0, 1):
        b = bowls(sizes=(4, 1, 2), seed=seed)
        owners = np.repeat([0, 1, 2], b.sizes)[np.random.default_rng(5).integers(7, size=4)]
        after = np.mean([b.path(i, 3)[0][-1] for i in range(3)], axis=0)
        g = np.mean([b.gradient(i, after) for i in owners], axis=0)
        sim = b.simulation(FedAvg())
        assert tracking(sim, batches=2, batch_size=2, seed=5) == compared((b.w - after) / (3 * LR), g)
        assert str(sim.flatness([TrackingError(batches=2, batch_size=2)])).count("(4 of 7)") == 2


def test_defaults_are_the_papers_batches() -> None:
    assert (TrackingError().batches, TrackingError().batch_size) == (10, 512)


def test_a_model_alone_has_no_direction() -> None:
    with pytest.raises(ValueError, match="looks at a round of training; measure a run, not a model alone"):
        ff.flatness(bowls().subject.objective.module, bowls().data, ["tracking-error"])

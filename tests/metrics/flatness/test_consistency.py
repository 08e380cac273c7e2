from __future__ import annotations

import numpy as np
import pytest

from fedflat.methods import FedAvg, FedSAM
from fedflat.metrics.flatness.measures.consistency import Consistency
from support.quadratic_clients import LR, Bowls, bowls, orthogonal


def consistency(sim, **settings) -> float:
    (found,) = sim.flatness([Consistency(**settings)]).values()
    assert found.error is None
    return found.value


def ends(b: Bowls, steps: tuple[int, ...]) -> np.ndarray:
    """Gradient descent: w_i = m_i + (I - lr A_i)^K_i (w - m_i), (clients, d)."""
    shrink = [np.linalg.matrix_power(np.eye(len(b.w)) - LR * A, k) for A, k in zip(b.A, steps, strict=True)]
    return np.array([m + S @ (b.w - m) for S, m in zip(shrink, b.m, strict=True)])


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_closed_form_around_the_next_model(executor: str) -> None:
    """The next model is the clients' mean, weighted by samples; in the mean of the distances they count the same."""
    b = bowls(sizes=(1, 4, 2))
    w = ends(b, (1, 4, 2))
    expected = np.mean(((w - b.shares @ w) ** 2).sum(1))
    sim = b.simulation(FedAvg(), steps=None, executor=executor, weights="samples")
    assert consistency(sim) == pytest.approx(expected, rel=1e-10)


def test_the_servers_step_counts() -> None:
    b = bowls()
    w = ends(b, (3, 3, 3))
    after = b.w + 0.5 * (w.mean(0) - b.w)
    expected = np.mean(((w - after) ** 2).sum(1))
    assert consistency(b.simulation(FedAvg(server_lr=0.5))) == pytest.approx(expected, rel=1e-10)


def test_closed_form_around_the_present_model_over_the_cohort() -> None:
    b = bowls()
    w = ends(b, (3, 3, 3))[[0, 2]]
    sim = b.simulation(FedAvg(), participation=[[0, 2]], rounds=1)
    assert consistency(sim, origin="current") == pytest.approx(np.mean(((w - b.w) ** 2).sum(1)), rel=1e-10)


def test_one_client_is_consistent_with_itself() -> None:
    assert consistency(bowls(clients=1).simulation(FedSAM())) < 1e-15


def test_rotation_changes_nothing() -> None:
    b = bowls()
    one, turned = (consistency(x.simulation(FedSAM(rho=0.1))) for x in (b, b.rotated(orthogonal(4))))
    assert turned == pytest.approx(one, rel=1e-9)

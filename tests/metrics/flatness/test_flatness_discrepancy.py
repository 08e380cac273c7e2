from __future__ import annotations

import numpy as np
import pytest

import fedflat as ff
from fedflat.methods import FedAvg, FedSAM
from fedflat.metrics.flatness.measures.flatness_discrepancy import FlatnessDiscrepancy
from support.quadratic_clients import LR, Bowl, Bowls, bowls, orthogonal, unit

RHO = 0.3


def pooled_rise(b: Bowls) -> float:
    g = b.pooled_gradient(b.w)
    return RHO * np.linalg.norm(g) + RHO**2 * unit(g) @ b.H @ unit(g) / 2


def local_rise(b: Bowls, i: int, steps: int) -> float:
    """After descent w_i = m_i + (I - lr A_i)^K (w - m_i), where F_i rises by rho ||g|| + rho^2 u' A_i u / 2."""
    away = np.linalg.matrix_power(np.eye(len(b.w)) - LR * b.A[i], steps) @ (b.w - b.m[i])
    g = b.A[i] @ away
    return RHO * np.linalg.norm(g) + RHO**2 * unit(g) @ b.A[i] @ unit(g) / 2


def discrepancy(sim: ff.Simulation, **settings) -> float:
    (found,) = sim.flatness([FlatnessDiscrepancy(rho=RHO, **settings)]).values()
    assert found.error is None
    return found.value


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_closed_form_over_all_clients_whoever_is_next(executor: str) -> None:
    b = bowls(sizes=(4, 1, 3))
    sim = b.simulation(FedAvg(), executor=executor, participation=[[0]], rounds=1)
    expected = abs(pooled_rise(b) - sum(n / 8 * local_rise(b, i, 3) for i, n in enumerate(b.sizes)))
    assert expected > 0.1
    assert discrepancy(sim) == pytest.approx(expected, rel=1e-9)


def test_closed_form_over_the_next_cohort() -> None:
    b = bowls(sizes=(4, 1, 3))
    sim = b.simulation(FedAvg(), steps=None, participation=[[0, 2]], rounds=1)
    local = 4 / 7 * local_rise(b, 0, 4) + 3 / 7 * local_rise(b, 2, 3)
    assert discrepancy(sim, clients="next") == pytest.approx(abs(pooled_rise(b) - local), rel=1e-9)


@pytest.mark.parametrize("max_samples", [1, 2, 8])
def test_both_sides_are_on_the_same_samples(max_samples: int) -> None:
    """A client's samples are alike, so a part of them is all of F_i; F has to be the mean of those, weighted by n_i."""
    b = bowls(sizes=(4, 1, 3))
    expected = abs(pooled_rise(b) - sum(n / 8 * local_rise(b, i, 3) for i, n in enumerate(b.sizes)))
    found = b.simulation(FedAvg()).flatness([FlatnessDiscrepancy(rho=RHO)], max_samples)[
        "flatness_discrepancy(rho=0.3)"
    ]
    assert found.value == pytest.approx(expected, rel=1e-9)
    used = {1: 3, 2: 2 + 1 + 2, 8: 8}[max_samples]
    assert found.samples == (None if used == 8 else (used, 8))
    assert str(found).endswith(f" ({used} of 8)") == (used < 8)


def test_equal_clients_at_their_minimum_have_none() -> None:
    b = bowls(sizes=(2, 2, 2))
    b.A, b.m, b.w = np.tile(b.A[0], (3, 1, 1)), np.tile(b.m[0], (3, 1)), b.m[0]
    assert discrepancy(b.simulation(FedSAM(rho=0.2))) == 0


def test_equal_clients_that_do_not_move_have_none() -> None:
    """Away from the minimum, as sharp locally as globally up to the step size, 1e-9."""
    b = bowls(sizes=(4, 4, 4))
    b.A, b.m = np.tile(b.A[0], (3, 1, 1)), np.tile(b.m[0], (3, 1))
    sim = ff.Simulation(Bowl(b.w), b.data, FedAvg(), ff.Client(lr=1e-9, steps=1))
    (found,) = sim.flatness([FlatnessDiscrepancy(rho=RHO)], max_samples=1).values()
    assert found.value < 1e-7 < pooled_rise(b)


def test_local_models_are_the_methods() -> None:
    """FedSAM's by hand, starting from the model after a round."""
    b, rho = bowls(), 0.4
    sim = b.simulation(FedSAM(rho=rho))
    sim.round()
    b.w = sim.w.numpy()
    ends = [b.path(i, 3, rho)[0][-1] for i in range(3)]
    local = sum(p * b.rise(i, w, b.gradient(i, w), RHO) for i, (p, w) in enumerate(zip(b.shares, ends, strict=True)))
    assert discrepancy(sim) == pytest.approx(abs(pooled_rise(b) - local), rel=1e-9)


def test_rotation_changes_nothing() -> None:
    b = bowls()
    one, turned = (discrepancy(x.simulation(FedSAM(rho=0.1))) for x in (b, b.rotated(orthogonal(4))))
    assert turned == pytest.approx(one, rel=1e-9)


def test_a_model_alone_has_no_local_models() -> None:
    with pytest.raises(ValueError, match="looks at a round of training; measure a run, not a model alone"):
        ff.flatness(bowls().subject.objective.module, bowls().data, ["flatness-discrepancy"])

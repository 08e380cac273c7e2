from __future__ import annotations

from math import pi, sin

import numpy as np
import pytest

import fedflat as ff
from fedflat.methods import FedAvg, FedLESAM, FedSAM
from fedflat.metrics.flatness.measures.perturbation_drift import PerturbationDrift
from support.quadratic_clients import Bowls, bowls, orthogonal, unit

EVERY_STEP = PerturbationDrift(steps=0)


def drift(sim: ff.Simulation, one: PerturbationDrift = EVERY_STEP) -> float:
    (found,) = sim.flatness([one]).values()
    assert found.error is None
    assert 0 <= found.value <= 1
    return found.value


def by_hand(b: Bowls, steps: dict[int, int], rho: float, stride: int = 1) -> float:
    """FedSAM's PD over a cohort with so many local steps each; who is done stays where it is."""
    paths = {i: b.path(i, K, rho) for i, K in steps.items()}
    distances = []
    for k in range(0, max(steps.values()), stride):
        w = np.mean([models[min(k, steps[i])] for i, (models, _) in paths.items()], axis=0)
        towards = unit(b.pooled_gradient(w))
        distances += [np.linalg.norm(towards - each[k]) for i, (_, each) in paths.items() if k < steps[i]]
    return np.mean(distances) / 2


def test_two_clients_at_right_angles() -> None:
    """From 0 towards e_1 and e_2 in round bowls the perturbations stay -e_1 and -e_2, the global one between them."""
    b = Bowls(np.array([np.eye(2)] * 2), np.eye(2), (1, 1), np.zeros(2))
    assert drift(b.simulation(FedSAM(rho=0.3))) == pytest.approx(sin(pi / 8), rel=1e-9)


def test_clients_that_agree_do_not_drift() -> None:
    b = bowls()
    b.A, b.m = b.A[[0, 0, 0]], b.m[[0, 0, 0]]
    assert drift(b.simulation(FedSAM())) < 1e-9


def test_clients_that_run_uphill_drift_fully() -> None:
    """A client whose bowl hangs upside down against a larger one that stands: opposite perturbations, all the way."""
    b = Bowls(np.array([-0.5 * np.eye(2), np.eye(2)]), np.zeros((2, 2)), (1, 9), np.array([0.3, 0.4]))
    sim = b.simulation(FedSAM(rho=0.1), participation=[[0]], rounds=1)
    assert drift(sim) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_uneven_local_work_by_hand(executor: str) -> None:
    b = bowls(clients=4, sizes=(3, 1, 6, 4))
    sim = b.simulation(FedSAM(rho=0.4), steps=None, executor=executor, participation=[[0, 1, 2]], rounds=1)
    expected = by_hand(b, {0: 3, 1: 1, 2: 6}, rho=0.4)
    assert 0.05 < expected < 0.95
    assert drift(sim) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("steps", "stride"), [(5, 2), (3, 2), (2, 3), (1, 6), (9, 1)])
def test_some_steps_are_evenly_spaced_over_the_longest_client(steps: int, stride: int) -> None:
    b = bowls(clients=4, sizes=(3, 1, 6, 4))
    sim = b.simulation(FedSAM(rho=0.4), steps=None, participation=[[0, 1, 3]], rounds=1)
    expected = by_hand(b, {0: 3, 1: 1, 3: 4}, 0.4, stride)
    assert drift(sim, PerturbationDrift(steps=steps)) == pytest.approx(expected, rel=1e-9)


def test_clients_that_are_not_perturbed_are_left_out() -> None:
    """FedLESAM perturbs along the server's move since a client's last round: client 2 had none."""
    b = bowls()
    assert not b.simulation(FedAvg()).flatness([EVERY_STEP])
    sim = b.simulation(FedLESAM(rho=0.2), steps=1, participation=[[0, 1], [0, 1, 2]], rounds=2)
    assert not sim.flatness([EVERY_STEP])
    sim.round()
    back = unit(b.w - sim.w.numpy())
    b.w = sim.w.numpy()
    expected = np.linalg.norm(unit(b.pooled_gradient(b.w)) - back) / 2
    assert drift(sim) == pytest.approx(expected, rel=1e-9)


def test_rotation_changes_nothing() -> None:
    b = bowls()
    one, turned = (drift(x.simulation(FedSAM(rho=0.1))) for x in (b, b.rotated(orthogonal(4))))
    assert turned == pytest.approx(one, rel=1e-9)

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from support.federation import simulation
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedGF = find("FedGF")


def transcription(
    p: Problem,
    rho: float,
    rho_g: float,
    c: float | None = None,
    limit: float = 0.0,
    window: int = 3,
    whole: bool = False,
) -> np.ndarray:
    w, before = p.w0, None
    queue: list[float] = []
    for t, cohort in enumerate(p.cohorts):
        if before is None:
            shifted, weight = w, 0.0
        else:
            shifted = w + rho_g * unit(before - w)
            weight = c if c is not None else sum(queue) / (window if whole else len(queue))
        moves = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                local = v + rho * unit(p.grad(i, v))
                v = p.step(v, p.grad(i, weight * shifted + (1 - weight) * local), p.lr(t))
            moves.append(v - w)
        distance = np.mean([np.linalg.norm(m) for m in moves])  # uniform, whatever the weights of the model
        queue = [*queue, float(distance > limit)][-window:]
        before, w = w, w + p.mean(cohort, moves)
    return w


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0])
def test_transcription_with_fixed_c(c: float) -> None:
    assert_agrees(lambda p: transcription(p, 0.3, 0.2, c), FedGF(rho=0.3, rho_g=0.2, c=c), ("uniform", "samples"))


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("limit", [0.2, 0.35, 0.5])
def test_transcription_with_adaptive_c(limit: float, whole: bool) -> None:
    method = FedGF(rho=0.3, rho_g=0.2, threshold=limit, window=3, divide_by_window=whole)
    assert_agrees(lambda p: transcription(p, 0.3, 0.2, None, limit, 3, whole), method, ("uniform", "samples"))


def test_c_is_the_share_of_far_rounds_in_the_window() -> None:
    """With a threshold between the drifts, c follows the rounds' drifts, over as many rounds as there are."""
    drifts = [r.metrics["drift"] for r in simulation(FedGF(c=0.0), rounds=7)]
    limit = float(np.median(drifts))
    reported = [r.metrics for r in simulation(FedGF(threshold=limit, window=2), rounds=7)]
    far = [m["drift"] > limit for m in reported]
    expected = [0.0] + [float(np.mean(far[max(0, t - 2) : t])) for t in range(1, len(far))]
    assert [m["c"] for m in reported] == expected
    assert 0 < sum(expected) < len(expected) - 1, "the case is one where c moves"


def test_the_global_radius_is_the_local_one_unless_given() -> None:
    assert np.array_equal(
        Problem().simulate(FedGF(rho=0.3, c=0.5)), Problem().simulate(FedGF(rho=0.3, rho_g=0.3, c=0.5))
    )


def test_threshold_zero_means_c_is_one_after_the_first_round() -> None:
    assert [r.metrics["c"] for r in simulation(FedGF(threshold=0.0), rounds=3)] == [0.0, 1.0, 1.0]


def test_c_one_takes_all_gradients_at_one_fixed_point() -> None:
    """Then w_i = w - lr K grad F_i(w_global), and the local gradient is irrelevant."""
    q = two_quadratics()
    method = FedGF(rho=0.3, rho_g=0.2, c=1.0)
    server, kept = q.run(method, 2)
    down = method.broadcast(server).map(lambda x: x.expand(2, -1))
    result = q.local(method, down, kept[0], [0, 1])
    move = server.last / server.last.norm()
    torch.testing.assert_close(down.w_global[0], server.w - 0.2 * move, rtol=0, atol=1e-12)
    expected = server.w - q.lr * q.steps * q.a * (down.w_global - q.b)
    torch.testing.assert_close(result.w, expected, rtol=0, atol=1e-12)

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from fedflat.rounds.cost import gradients_per_step, vector_cost
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedTOGA = find("FedTOGA")
PERTURBATIONS = ["both", "local", "neighbour"]
SCALES = ["step", "gradient"]


def transcription(
    p: Problem, rho: float, kappa: float, beta: float, alpha: float, perturbation: str, scale: str
) -> np.ndarray:
    w, delta = p.w0, np.zeros_like(p.w0)
    h = [np.zeros_like(w) for _ in range(p.N)]
    for t, cohort in enumerate(p.cohorts):
        moves, parts = [], []
        for i in cohort:
            v, last = w, np.zeros_like(w)
            for _ in range(p.steps(i)):
                a = kappa * delta
                if perturbation in ("both", "local"):
                    a = a + p.grad(i, v)
                if perturbation in ("both", "neighbour"):
                    a = a + last
                last = p.grad(i, v + rho * unit(a))
                v = p.step(v, last + alpha * (h[i] + v - w) + beta * delta, p.lr(t))
            h[i] = h[i] + v - w
            moves.append(v - w)
            parts.append((v - w) / (p.steps(i) * (p.lr(t) if scale == "gradient" else 1)))
        delta = -sum(parts) / len(parts)
        w = w + sum(moves) / len(moves) + sum(h) / p.N
    return w


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("perturbation", PERTURBATIONS)
@pytest.mark.parametrize("scale", SCALES)
def test_transcription(scale: str, perturbation: str, uneven: bool) -> None:
    method = FedTOGA(rho=0.3, kappa=0.7, beta=0.4, alpha=0.2, perturbation=perturbation, global_update=scale)
    assert_agrees(lambda p: transcription(p, 0.3, 0.7, 0.4, 0.2, perturbation, scale), method, uneven=uneven)


def test_transcription_with_the_defaults() -> None:
    assert_agrees(lambda p: transcription(p, 0.1, 1.0, 0.9, 0.1, "both", "step"), FedTOGA())


@pytest.mark.parametrize("scale", SCALES)
def test_the_global_update_is_the_mean_gradient_times_what_it_leans_on(scale: str) -> None:
    """Without regulariser a local step moves by lr (g + beta Delta), so Delta_new is lr or 1 times their mean."""
    q = two_quadratics()
    method = FedTOGA(alpha=0.0, beta=0.4, global_update=scale)
    before, kept = q.run(method, 3)
    q.asked.clear()
    after, _ = q.round(method, before, kept, [0, 1], 3)
    sharp = torch.stack([q.a * (w - q.b) for w in q.asked[1::2]]).mean((0, 1))
    expected = (0.1 if scale == "step" else 1.0) * (sharp + 0.4 * before.direction)
    torch.testing.assert_close(after.direction, expected, rtol=0, atol=1e-13)


def test_a_steady_update_in_gradients_makes_steps_one_over_one_minus_beta_times_longer() -> None:
    """Delta <- g + beta Delta has the limit g / (1 - beta); with steps as the unit, the limit is lr g / (1 - lr beta).

    The gradient does not change along the second coordinate of clients that are all alike and hardly curved there.
    """
    q = two_quadratics()
    q.a, q.b = torch.tensor([[1e-9]], dtype=torch.float64), torch.tensor([[1e9]], dtype=torch.float64)
    for scale, expected in (("gradient", 1 / (1 - 0.5)), ("step", 0.1 / (1 - 0.1 * 0.5))):
        server, _ = q.run(FedTOGA(rho=0.0, alpha=0.0, beta=0.5, global_update=scale), 60)
        assert server.direction.item() == pytest.approx(-expected, rel=1e-5)


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
def test_the_perturbation_has_length_rho_along_what_it_sums(perturbation: str) -> None:
    q = two_quadratics(steps=2)
    method = FedTOGA(rho=0.5, kappa=0.7, perturbation=perturbation)
    before, kept = q.run(method, 2)
    q.asked.clear()
    q.round(method, before, kept, [0, 1], 2)
    gradients = [q.a * (w - q.b) for w in q.asked]
    a = 0.7 * before.direction.expand(2, -1)
    if perturbation == "neighbour":  # the only gradient of the first step is taken along Delta alone
        here = before.w
        torch.testing.assert_close(q.asked[0] - here, 0.5 * a / a.norm(dim=-1, keepdim=True), rtol=0, atol=1e-11)
        return
    first, second, sharp = a + gradients[0], a + gradients[2], gradients[1]
    second = second + sharp if perturbation == "both" else second
    for k, along in ((0, first), (2, second)):
        expected = 0.5 * along / along.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(q.asked[k + 1] - q.asked[k], expected, rtol=0, atol=1e-11)


def test_the_first_step_of_neighbour_is_unperturbed() -> None:
    q = two_quadratics()
    q.run(FedTOGA(rho=0.5, perturbation="neighbour"), 1)
    assert torch.equal(q.asked[0], torch.zeros(2, 2, dtype=torch.float64))
    assert len(q.asked) == q.steps


def test_both_is_local_in_its_first_step_only() -> None:
    """The last gradient is forgotten at the end of a round, so the first step of any round has none."""
    q, other = two_quadratics(), two_quadratics()
    both, local = FedTOGA(rho=0.5), FedTOGA(rho=0.5, perturbation="local")
    server, kept = q.run(both, 1)
    other.run(local, 1)
    assert torch.equal(q.asked[1], other.asked[1])
    assert not torch.equal(q.asked[3], other.asked[3])
    q.asked.clear()
    q.round(both, server, kept, [0, 1], 1)
    a = q.a * (q.asked[0] - q.b) + server.direction
    torch.testing.assert_close(q.asked[1] - q.asked[0], 0.5 * a / a.norm(dim=-1, keepdim=True), rtol=0, atol=1e-11)
    assert FedTOGA.client.marked("per_round") == {"last"}


@pytest.mark.parametrize(
    ("hyper", "vectors", "gradients"),
    [
        ({}, (2, 1, 1, 3), 2),
        ({"global_update": "gradient"}, (2, 1, 1, 3), 2),
        ({"perturbation": "local"}, (2, 1, 1, 3), 2),
        ({"perturbation": "neighbour"}, (2, 1, 1, 3), 1),
        ({"rho": 0.0}, (2, 1, 1, 3), 1),
        ({"rho": 0.0, "beta": 0.0}, (1, 1, 1, 3), 1),
        ({"kappa": 0.0, "beta": 0.0}, (1, 1, 1, 3), 2),
    ],
)
def test_cost(hyper: dict, vectors: tuple[int, ...], gradients: int) -> None:
    cost = vector_cost(FedTOGA(**hyper))
    assert (cost.down, cost.up, cost.client, cost.server) == vectors
    assert gradients_per_step(FedTOGA(**hyper)) == gradients


@pytest.mark.parametrize(("hyper", "width"), [({}, 5), ({"perturbation": "local"}, 0), ({"rho": 0.0}, 0)])
def test_the_last_gradient_is_held_only_where_it_perturbs(hyper: dict, width: int) -> None:
    assert FedTOGA.client.widths(5, FedTOGA(**hyper))["last"] == width

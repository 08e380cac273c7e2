from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedflat.methods import find
from fedflat.methods.fedmuon import newton_schulz, polar
from fedflat.rounds.cost import gradients_per_step, method_cost, vector_cost
from support.problem import Linear, Problem, Tanh, assert_agrees

FedMuon = find("FedMuon")
Orthogonal = Callable[[np.ndarray], np.ndarray]


def quintic(G: np.ndarray, steps: int = 5) -> np.ndarray:
    """Newton-Schulz by its effect on singular values: s <- a s + b s^3 + c s^5; vectors stay."""
    U, s, Vh = np.linalg.svd(G, full_matrices=False)
    s = s / (np.sqrt((s**2).sum()) + 1e-7)
    for _ in range(steps):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return U @ np.diag(s) @ Vh


def without_values(G: np.ndarray) -> np.ndarray:
    """U V^T over the singular values above 1e-6 of the largest."""
    U, s, Vh = np.linalg.svd(G, full_matrices=False)
    return sum((np.outer(U[:, j], Vh[j]) for j in range(len(s)) if s[j] > 1e-6 * s[0]), np.zeros_like(G))


def transcription(
    p: Problem, beta: float, alpha: float, scale: float, nesterov: bool, orthogonal: Orthogonal
) -> np.ndarray:
    shapes = [tuple(q.shape) for q in p.module.parameters()]
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    places = [slice(*pair) for pair in pairwise(ends)]
    w, delta, M0 = p.w0, np.zeros_like(p.w0), np.zeros_like(p.w0)
    for t, cohort in enumerate(p.cohorts):
        models, momenta, directions = [], [], []
        for i in cohort:
            x, M, m, v = w, M0.copy(), np.zeros_like(w), np.zeros_like(w)
            for k in range(1, p.steps(i) + 1):
                g, q = p.grad(i, x), np.zeros_like(w)
                M = beta * M + (1 - beta) * g
                m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
                for shape, at in zip(shapes, places, strict=True):
                    if len(shape) > 1:
                        G = (1 - beta) * g[at] + beta * M[at] if nesterov else M[at]
                        factor = scale * np.sqrt(max(1, shape[0] / shape[1]))
                        q[at] = factor * orthogonal(G.reshape(shape)).ravel()
                    else:
                        q[at] = m[at] / (1 - 0.9**k) / (np.sqrt(v[at] / (1 - 0.95**k)) + 1e-10)
                x = p.step(x, (1 - alpha) * q + alpha * delta, p.lr(t))
            models.append(x)
            momenta.append(M)
            directions.append((w - x) / (p.lr(t) * p.steps(i)))
        w, M0, delta = (p.mean(cohort, values) for values in (models, momenta, directions))
    return w


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(("name", "orthogonal"), [("newton_schulz", quintic), ("svd", without_values)])
def test_transcription(name: str, orthogonal: Orthogonal, nesterov: bool, uneven: bool) -> None:
    method = FedMuon(beta=0.8, alpha=0.3, matrix_scale=0.5, nesterov=nesterov, orthogonal=name)
    made = partial(transcription, beta=0.8, alpha=0.3, scale=0.5, nesterov=nesterov, orthogonal=orthogonal)
    assert_agrees(made, method, uneven=uneven)


def test_transcription_with_the_defaults_and_weights() -> None:
    made = partial(transcription, beta=0.98, alpha=0.5, scale=1.0, nesterov=True, orthogonal=quintic)
    assert_agrees(made, FedMuon(), ("uniform", "samples"))


def test_the_mean_direction_alone_keeps_the_initial_model() -> None:
    p = Problem(Tanh(), wd=0.0)
    assert np.array_equal(p.simulate(FedMuon(alpha=1.0)), p.w0)


def test_the_scale_of_the_momentum_does_not_matter_without_nesterov() -> None:
    """The paper's M <- beta M + g, by a transcription of its own, gives the same models as M <- beta M + (1-beta) g."""

    def papers(p: Problem) -> np.ndarray:
        shape, width = (p.classes, p.features), p.classes * p.features
        w, M0 = p.w0, np.zeros(shape)
        for t, cohort in enumerate(p.cohorts):
            models, momenta = [], []
            for i in cohort:
                x, M, m, v = w, M0, np.zeros(p.classes), np.zeros(p.classes)
                for k in range(1, p.K + 1):
                    g = p.grad(i, x)
                    M, b = 0.8 * M + g[:width].reshape(shape), g[width:]
                    m, v = 0.9 * m + 0.1 * b, 0.95 * v + 0.05 * b**2
                    step = m / (1 - 0.9**k) / (np.sqrt(v / (1 - 0.95**k)) + 1e-10)
                    x = p.step(x, np.concatenate([without_values(M).ravel(), step]), p.lr(t))
                models.append(x)
                momenta.append(M)
            w, M0 = p.mean(cohort, models), sum(momenta) / len(momenta)
        return w

    p, method = Problem(Linear()), FedMuon(beta=0.8, alpha=0.0, nesterov=False, orthogonal="svd")
    assert np.abs(p.simulate(method) - papers(p)).max() <= 1e-10


def random_matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(2, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(rows))


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (5, 3), (4, 4), (1, 6)])
def test_what_is_made_orthogonal_has_the_singular_vectors_of_the_matrix(rows: int, columns: int) -> None:
    """O(A G B) = A O(G) B for orthogonal A and B, for both ways."""
    G = random_matrix(rows, columns)
    A, B = (torch.linalg.qr(random_matrix(n, n)[0]).Q for n in (rows, columns))
    for made in (partial(newton_schulz, steps=5), polar):
        torch.testing.assert_close(made(A @ G @ B), A @ made(G) @ B, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(3, 5), (5, 3), (4, 4)])
def test_the_decomposition_has_singular_values_of_one(rows: int, columns: int) -> None:
    values = torch.linalg.svdvals(polar(random_matrix(rows, columns)))
    torch.testing.assert_close(values, torch.ones_like(values), rtol=0, atol=1e-12)


def test_directions_that_the_matrix_has_not_stay_without() -> None:
    """The rows of a softmax layer's gradient add up to zero, and so do those of what is made of it."""
    G = random_matrix(4, 6)
    G = G - G.mean(-2, keepdim=True)
    assert polar(G).sum(-2).abs().max() <= 1e-12
    assert newton_schulz(G, 5).sum(-2).abs().max() <= 1e-12
    nothing = torch.zeros(2, 3, 4, dtype=torch.float64)
    assert torch.equal(polar(nothing), nothing)
    assert torch.equal(newton_schulz(nothing, 5), nothing)


def test_five_steps_of_the_iteration_end_near_one() -> None:
    """Singular values from 0.05 to 1 Frobenius norms go to 0.68 to 1.13, as known of Muon's coefficients."""
    for s in np.linspace(0.05, 1.0, 40):
        other = np.sqrt(max(0.0, 1 - s**2))
        G = torch.diag(torch.tensor([s, other], dtype=torch.float64))
        made = newton_schulz(G, 5)[0, 0].item()
        assert 0.67 <= made <= 1.14


def test_kernels_are_matrices_whatever_the_order_of_their_columns() -> None:
    """A kernel is kept as (out, height, width, in): a permutation of columns, which goes through O."""
    G = random_matrix(3, 8)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(newton_schulz(G[..., order], 5), newton_schulz(G, 5)[..., order], rtol=0, atol=1e-12)
    method = FedMuon().on_model(((2, 3, 2, 2), (2,)))
    assert (method.matrix_width, method.vector_width) == (24, 2)
    square = FedMuon(orthogonal="svd").on_model(((2, 3, 2, 2), (2,)))
    step = square._orthogonalised(torch.arange(24.0).double().sin()[None])
    assert step.norm().item() == pytest.approx(2**0.5), "a matrix of rank 2 with singular values of one"


def test_cost() -> None:
    cost = vector_cost(FedMuon())
    assert (cost.down, cost.up, cost.client, cost.server, gradients_per_step(FedMuon())) == (3, 2, 0, 3, 1)
    exact = method_cost(FedMuon().on_model(((4, 5), (4,))), 24)
    assert (exact.down, exact.up, exact.client) == (2 * 24 + 20, 24 + 20, 0), "M has no vectors"


@pytest.mark.parametrize("changes", [{"nesterov": False}, {"orthogonal": "svd"}, {"ns_steps": 3}, {"beta": 0.5}])
def test_options_differ(changes: dict) -> None:
    p = Problem(Tanh())
    assert np.abs(p.simulate(FedMuon(**changes)) - p.simulate(FedMuon())).max() > 1e-4

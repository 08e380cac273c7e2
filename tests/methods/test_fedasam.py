from __future__ import annotations

import numpy as np
import torch

from fedflat.core.method import Context
from fedflat.methods import find
from support.problem import Problem, assert_agrees

FedASAM = find("FedASAM")


def weights_first(p: Problem) -> np.ndarray:
    """True on the entries of weight matrices, in the order of the flat vector."""
    return np.concatenate([np.full(x.numel(), name.endswith("weight")) for name, x in p.module.named_parameters()])


def transcription(p: Problem, rho: float, eta: float) -> np.ndarray:
    w, is_weight = p.w0, weights_first(p)
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                T = np.where(is_weight, np.abs(v) + eta, 1.0)
                g = p.grad(i, v)
                e = rho * T**2 * g / np.linalg.norm(T * g)
                v = p.step(v, p.grad(i, v + e), p.lr(t))
            moves.append(v - w)
        w = w + p.mean(cohort, moves)
    return w


def test_transcription() -> None:
    assert_agrees(lambda p: transcription(p, 0.4, 0.2), FedASAM(rho=0.4, eta=0.2), ("uniform", "samples"))


def perturbation(w: torch.Tensor, gradient: torch.Tensor, **hyper) -> torch.Tensor:
    asked = []
    grad = lambda at: asked.append(at) or gradient  # noqa: E731
    ctx = Context(t=0, lr=0.1, share=1.0, is_weight=torch.ones(4, dtype=torch.bool))
    FedASAM(**hyper).step(w, None, None, grad, ctx)
    return asked[1] - asked[0]


def test_rescaling_a_layer_rescales_its_perturbation() -> None:
    """With eta = 0: w -> a w and g -> g / a in one layer gives e -> a e there, and nothing changes elsewhere."""
    torch.manual_seed(0)
    w, g = torch.randn(4).double(), torch.randn(4).double()
    scale = torch.tensor([10.0, 10.0, 1.0, 1.0]).double()
    e = perturbation(w, g, rho=0.3, eta=0.0)
    torch.testing.assert_close(perturbation(scale * w, g / scale, rho=0.3, eta=0.0), scale * e, rtol=1e-11, atol=0)


def test_unit_scale_is_fedsam() -> None:
    """T = 1 where there is no weight: then the perturbation is rho unit(g)."""
    w, g = torch.zeros(4).double(), torch.tensor([1.0, 2.0, 2.0, 4.0]).double()
    torch.testing.assert_close(perturbation(w, g, rho=0.5, eta=1.0), 0.1 * g, rtol=1e-11, atol=0)

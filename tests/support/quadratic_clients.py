"""Clients whose cross-entropy is exactly a quadratic, run through the real landscape, subject and simulation.

Client i has F_i(w) = 1 + 1/2 (w - m_i)' A_i (w - m_i). Its samples are copies of (A_i, m_i), and the module's
two scores for one of them are (0, log(e^q - 1)), whose cross-entropy for class 0 is q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.method import Method
from fedflat.core.objective import Objective
from fedflat.metrics.flatness import Measure, Measured, Subject, measure

LR = 0.1


class Bowl(nn.Module):
    """Scores (b, 2) of samples (b, d d + d): A row-major, then m."""

    def __init__(self, w: np.ndarray) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(w.copy()))

    def forward(self, x: Tensor) -> Tensor:
        d = self.weight.shape[-1]
        away = self.weight - x[:, d * d :]
        q = 1 + (away * (x[:, : d * d].unflatten(1, (d, d)) @ away[..., None])[..., 0]).sum(1) / 2
        return torch.stack([torch.zeros_like(q), q + torch.log(-torch.expm1(-q))], 1)


@dataclass
class Bowls:
    """The clients, in NumPy: A (clients, d, d) symmetric, m (clients, d), the number of samples of each, and w (d,)."""

    A: np.ndarray
    m: np.ndarray
    sizes: tuple[int, ...]
    w: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        return np.array(self.sizes) / sum(self.sizes)

    def loss(self, i: int, w: np.ndarray) -> float:
        return 1 + (w - self.m[i]) @ self.A[i] @ (w - self.m[i]) / 2

    def gradient(self, i: int, w: np.ndarray) -> np.ndarray:
        return self.A[i] @ (w - self.m[i])

    def pooled_loss(self, w: np.ndarray) -> float:
        return sum(p * self.loss(i, w) for i, p in enumerate(self.shares))

    def pooled_gradient(self, w: np.ndarray) -> np.ndarray:
        return sum(p * self.gradient(i, w) for i, p in enumerate(self.shares))

    @property
    def H(self) -> np.ndarray:
        """The Hessian of the pooled loss."""
        return np.tensordot(self.shares, self.A, 1)

    def rotated(self, Q: np.ndarray) -> Bowls:
        """The same clients seen in coordinates Q w."""
        return Bowls(Q @ self.A @ Q.T, self.m @ Q.T, self.sizes, Q @ self.w)

    @property
    def data(self) -> ff.FederatedData:
        rows = [np.concatenate([A.ravel(), m]) for A, m in zip(self.A, self.m, strict=True)]
        clients = [(np.tile(row, (n, 1)), np.zeros(n, dtype=int)) for row, n in zip(rows, self.sizes, strict=True)]
        return ff.FederatedData.from_clients(clients, classes=2)

    @property
    def subject(self) -> Subject:
        """The model alone, without a round."""
        return Subject(Objective(Bowl(self.w)), torch.from_numpy(self.w), self.data)

    def simulation(self, method: Method, steps: int | None = 3, **settings) -> ff.Simulation:
        """The real thing. A client's samples are alike, so a batch is as good as all of them.

        With steps = None a client takes one step per sample. client: further settings of local training.
        """
        client = {"lr": LR, **({"steps": steps} if steps else {"batch_size": 1}), **settings.pop("client", {})}
        return ff.Simulation(Bowl(self.w), self.data, method, ff.Client(**client), **settings)

    def path(self, i: int, steps: int, rho: float = 0.0) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """FedSAM of client i by hand from w: its models before each step and at the end, and its unit perturbations."""
        models, perturbations = [self.w], []
        for _ in range(steps):
            at = models[-1]
            perturbations.append(unit(self.gradient(i, at)))
            models.append(at - LR * self.gradient(i, at + rho * perturbations[-1]))
        return models, perturbations

    def rise(self, i: int, w: np.ndarray, d: np.ndarray, rho: float) -> float:
        """F_i(w + rho unit(d)) - F_i(w)."""
        return self.loss(i, w + rho * unit(d)) - self.loss(i, w)


def bowls(clients: int = 3, d: int = 4, seed: int = 0, sizes: tuple[int, ...] | None = None) -> Bowls:
    """Unlike curvatures and optima, positive definite."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(clients, d, d))
    A = roots @ roots.transpose(0, 2, 1) / d + 0.2 * np.eye(d)
    return Bowls(A, rng.normal(size=(clients, d)), sizes or tuple(range(1, clients + 1)), rng.normal(size=d))


def unit(v: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(v)
    return v / norm if norm > 0 else v


def measured(subject: Subject, one: Measure) -> dict[str, Measured]:
    """The values of one measure, through the front door."""
    return dict(measure(subject, [one]))


def orthogonal(d: int, seed: int = 0) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]

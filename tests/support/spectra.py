"""Stand-ins with a known Hessian, for what looks at a landscape through products only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from support.quadratic_clients import orthogonal

OUTLIERS = np.linspace(2, 10, 9)  # as of a network with ten classes


@dataclass
class Known:
    """Groups of samples with Hessians `matrices` (groups, d, d): a subject and its pooled landscape in one."""

    matrices: np.ndarray
    dtype: torch.dtype = torch.float64
    samples: str = "known"
    coordinates: str = ""  # it is no part of a model with adapters
    statistics: str = ""  # nor of one with running statistics

    @property
    def pooled(self) -> Known:
        return self

    @property
    def total(self) -> int:
        return len(self)

    @property
    def d(self) -> int:
        return self.matrices.shape[1]

    @property
    def w(self) -> Tensor:
        return torch.zeros(self.d, dtype=self.dtype)

    @property
    def H(self) -> np.ndarray:
        return self.matrices.mean(0)

    def __len__(self) -> int:
        return len(self.matrices)

    def parts(self, number: int) -> list[Known]:
        number = min(number, len(self))
        return [Known(self.matrices[i::number], self.dtype) for i in range(number)]


@dataclass
class KnownHessian:
    """In place of `Hessian`."""

    landscape: Known
    w: Tensor
    block: int = 3  # vectors at once
    products: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._H = torch.from_numpy(self.landscape.H)

    def __call__(self, v: Tensor) -> Tensor:
        self.products += v.numel() // self.landscape.d
        return v.double() @ self._H


def like_a_network(d: int = 120, groups: int = 1, noise: float = 0.1, seed: int = 0) -> Known:
    """Nine outliers over a bulk of both signs, in a random basis; groups differ from their mean by noise."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([OUTLIERS, rng.uniform(-0.1, 0.3, d - len(OUTLIERS))])
    return Known(rotated(values, seed) + centred(noise * rng.normal(size=(groups, d, d))))


def rotated(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """A symmetric matrix with these eigenvalues (d,)."""
    Q = orthogonal(len(values), seed)
    return (Q * values) @ Q.T


def centred(matrices: np.ndarray) -> np.ndarray:
    """Symmetric matrices (groups, d, d) whose mean is zero."""
    symmetric = (matrices + matrices.transpose(0, 2, 1)) / 2
    return symmetric - symmetric.mean(0)

"""The largest eigenvalue of the loss Hessian."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from ...core.objective import Batch, Objective
from .hessian import hessian_product


def lambda_max(objective: Objective, w: Tensor, batch: Batch, tol: float = 1e-4) -> tuple[float, float]:
    """The algebraically largest Hessian eigenvalue at `w` (d,) and its residual ||H v - lambda v||.

    Lanczos (scipy's eigsh) on Hessian-vector products, to relative tolerance `tol`, from a fixed
    start vector.
    """
    product = hessian_product(objective, w, batch)

    def matvec(v: np.ndarray) -> np.ndarray:
        return product(torch.from_numpy(v.ravel()).to(w)).double().cpu().numpy()

    if objective.space.d == 1:
        return float(matvec(np.ones(1))[0]), 0.0
    operator = LinearOperator((objective.space.d,) * 2, matvec=matvec, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(objective.space.d)
    if not matvec(start).any():  # the Hessian is zero, as in a network whose units are all dead
        return 0.0, 0.0
    values, vectors = eigsh(operator, k=1, which="LA", tol=tol, v0=start)
    residual = np.linalg.norm(matvec(vectors[:, 0]) - values[0] * vectors[:, 0])
    return float(values[0]), float(residual)

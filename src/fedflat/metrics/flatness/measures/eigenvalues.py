from __future__ import annotations

import numpy as np

from ....core.hyper import hyper
from ....core.progress import Steps
from ..hessian import Hessian, Krylov, gaussian
from ..measure import Finding, LossMeasure, Measured
from ..subject import Subject


class Eigenvalues(LossMeasure):
    """The algebraically largest eigenvalues of the Hessian of the training loss.

    Thick-restart Lanczos (Wu and Simon, 2000) from a fixed random vector, until all their residuals
    ||H v - lambda v|| are within the tolerance. The error of an eigenvalue is its residual: an exact
    eigenvalue is at most this far away (and usually much closer). An eigenvalue that is exactly multiple
    is found only once, unless the basis spans the entire space.
    """

    precision = ("k", "tol", "most")

    k: int = hyper(1, "number of eigenvalues", low=1)
    tol: float = hyper(1e-4, "residual at which to stop, relative to the eigenvalue", low=0, open_low=True)
    most: int = hyper(1000, "Hessian products at most; the residuals are stated in any case", low=1)

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        hessian = Hessian(subject.pooled, subject.w)
        pairs = eigenpairs(hessian, min(self.k, subject.pooled.d), self.tol, self.most, progress)
        values = {
            "lambda_max" if i == 1 else f"lambda_{i}": Measured(value, residual, "residual")
            for i, (value, residual) in enumerate(pairs, start=1)
        }
        return self.finding(subject, values)


def eigenpairs(hessian: Hessian, k: int, tol: float, most: int, progress: Steps) -> list[tuple[float, float]]:
    """Compute the `k` largest eigenvalues, descending, each with its residual."""
    # A basis twice as large saved at most one product in thirty, on MLPs and LeNet before and after training.
    krylov = Krylov(hessian, gaussian(np.random.default_rng(0), hessian.w), room=2 * k + 8)
    while True:
        krylov.grow()
        done = krylov.m >= k and _done(krylov, k, tol, most)
        progress(hessian.products, hessian.products if done else max(10 * k, hessian.products + 1))
        if done:
            values, _, residuals = krylov.ritz(k)
            return list(zip(values.tolist(), residuals.tolist(), strict=True))
        if krylov.m == krylov.room:
            krylov.restart((krylov.room + k) // 2)


def _done(krylov: Krylov, k: int, tol: float, most: int) -> bool:
    """Tell whether to stop. A space of few dimensions is spanned completely, which finds all multiple eigenvalues."""
    if krylov.m == krylov.d or krylov.hessian.products >= most:
        return True
    values, _, residuals = krylov.ritz(k)
    return krylov.room < krylov.d and bool((residuals <= (tol * values.abs()).clamp(min=krylov.rounding)).all())

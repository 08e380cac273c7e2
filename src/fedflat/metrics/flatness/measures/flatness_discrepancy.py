from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from ....core.hyper import hyper
from ....core.progress import Steps, no_progress
from ....data.types import Index
from ..measure import Finding, Measure, Measured
from ..subject import RoundObserver, Subject
from .sharpness import worst_rise


class FlatnessDiscrepancy(Measure):
    """How far the global model's sharpness is from that of the local models: Delta_F (Lee & Yoon, 2024, Def. 1).

    Delta_F = |R(F, w) - sum_i (n_i / n) R(F_i, w_i)|, where R(F, w) = F(w + rho unit(grad F(w))) - F(w)
    approximates the maximum rise in the ball by one normalised ascent step with the full gradient. F_i is the loss of
    client i on its own samples, w_i is its local model after the next round, and F = sum_i (n_i / n) F_i over all
    clients. F is computed on the same samples as the F_i, because sharpness on a part of the samples is larger. The
    paper does not state which clients the sum of R(F_i, w_i) includes: here all clients, or the next cohort. In each
    sum, n is the number of samples of its clients.
    """

    needs_round = True
    rho: float = hyper(0.05, "radius of the balls, in the unit of the parameters", low=0)
    clients: Literal["all", "next"] = hyper("all", "the clients that train: all, or the next cohort")

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        if subject.objective.statistics.width:
            raise ArithmeticError("local models have running statistics of their own, which the round does not show")
        everybody = np.arange(subject.data.clients)
        local = _LocalSharpness(subject, self.rho, progress, len(everybody) if self.clients == "all" else 0)
        subject.next_round(everybody if self.clients == "all" else None, local)
        rise = worst_rise(subject.together(everybody), subject.w, self.rho, 1, no_progress)
        progress(local.finished + 1, local.finished + 1)
        value = abs(rise - local.total / local.weight)
        used = subject.used_of(everybody)
        return self.finding(subject, {"flatness_discrepancy": Measured(value)}, samples=subject.part(used), used=used)


class _LocalSharpness(RoundObserver):
    """Sums the sharpness of local models, each on its client's samples, as soon as the clients finish."""

    def __init__(self, subject: Subject, rho: float, progress: Steps, expected: int) -> None:
        """Start with no client; `expected` is the number of clients, 0 if it is not known."""
        self.subject, self.rho, self.progress, self.expected = subject, rho, progress, expected
        self.total, self.weight, self.finished = 0.0, 0, 0  # the total is weighted by the clients' samples

    def done(self, clients: Index, w: Tensor) -> None:
        for i, local in zip(clients.tolist(), w, strict=True):
            n = int(self.subject.data.sizes[i])
            self.total += n * worst_rise(self.subject.client(i), local, self.rho, 1, no_progress)
            self.weight, self.finished = self.weight + n, self.finished + 1
            self.progress(self.finished, max(self.expected, self.finished) + 1)

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from ....core.hyper import hyper
from ....data.federated import Index
from ..measure import Measure, StepCallback
from ..measured import Finding, Measured
from ..subject import RoundObserver, Subject
from .sharpness import unheard, worst_rise


class FlatnessDiscrepancy(Measure):
    """How far the global model's sharpness is from that of the local models: Delta_F (Lee & Yoon, 2024, Def. 1).

    Delta_F = |R(F, w) - sum_i (n_i / n) R(F_i, w_i)|, where R(F, w) = F(w + rho unit(grad F(w))) - F(w)
    is the maximum over the ball by one normalised ascent step with the full gradient. F is the loss on
    the pooled samples of all clients, F_i that of client i on its own, and w_i is what client i would
    make of w in the round that follows. The paper does not say which i: all clients, or the next
    cohort; n is the number of their samples.
    """

    needs_round = True
    rho: float = hyper(0.05, "radius of the balls, in the unit of the parameters", low=0)
    clients: Literal["all", "next"] = hyper("all", "who trains for it: all clients, or the next cohort")

    def measure(self, subject: Subject, progress: StepCallback) -> Finding:
        everybody = np.arange(subject.data.clients) if self.clients == "all" else None
        local = _LocalSharpness(subject, self.rho, progress, 0 if everybody is None else len(everybody))
        subject.next_round(everybody, local)
        rise = worst_rise(subject.pooled, subject.w, self.rho, 1, unheard)
        progress(local.seen + 1, local.seen + 1)
        samples = f"{subject.samples}; of each client's at most {subject.max_samples:,}"
        return self.finding(subject, {"flatness_discrepancy": Measured(abs(rise - local.mean))}, samples=samples)


class _LocalSharpness(RoundObserver):
    """Sums the sharpness of local models, each on its client's samples, as they are done."""

    def __init__(self, subject: Subject, rho: float, progress: StepCallback, expected: int) -> None:
        """`expected` clients will be seen; 0 if that is not known."""
        self.subject, self.rho, self.progress, self.expected = subject, rho, progress, expected
        self.total, self.weight, self.seen = 0.0, 0, 0

    def done(self, clients: Index, w: Tensor) -> None:
        for i, local in zip(clients.tolist(), w, strict=True):
            n = int(self.subject.data.sizes[i])
            self.total += n * worst_rise(self.subject.client(i), local, self.rho, 1, unheard)
            self.weight, self.seen = self.weight + n, self.seen + 1
            self.progress(self.seen, max(self.expected, self.seen) + 1)

    @property
    def mean(self) -> float:
        """Weighted by the clients' samples."""
        return self.total / self.weight

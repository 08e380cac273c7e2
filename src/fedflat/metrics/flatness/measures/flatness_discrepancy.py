from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from ....core.hyper import hyper
from ....data.federated import Index
from ..measure import Finding, Measure, Measured, StepCallback, no_progress
from ..subject import RoundObserver, Subject
from .sharpness import worst_rise


class FlatnessDiscrepancy(Measure):
    """How far the global model's sharpness is from that of the local models: Delta_F (Lee & Yoon, 2024, Def. 1).

    Delta_F = |R(F, w) - sum_i (n_i / n) R(F_i, w_i)|, where R(F, w) = F(w + rho unit(grad F(w))) - F(w)
    is the maximum over the ball by one normalised ascent step with the full gradient. F is the loss on
    the pooled samples of all clients, F_i the loss of client i on its own samples, and w_i the local model of
    client i after the round that follows. The paper does not say which clients: here all, or the next cohort;
    n is the number of their samples.
    """

    needs_round = True
    rho: float = hyper(0.05, "radius of the balls, in the unit of the parameters", low=0)
    clients: Literal["all", "next"] = hyper("all", "the clients that train: all, or the next cohort")

    def measure(self, subject: Subject, progress: StepCallback) -> Finding:
        clients = np.arange(subject.data.clients) if self.clients == "all" else None
        local = _LocalSharpness(subject, self.rho, progress, 0 if clients is None else len(clients))
        subject.next_round(clients, local)
        rise = worst_rise(subject.pooled, subject.w, self.rho, 1, no_progress)
        progress(local.finished + 1, local.finished + 1)
        samples = f"{subject.samples}; of each client's at most {subject.max_samples:,}"
        value = abs(rise - local.total / local.weight)
        return self.finding(subject, {"flatness_discrepancy": Measured(value)}, samples=samples)


class _LocalSharpness(RoundObserver):
    """Sums the sharpness of local models, each on its client's samples, as soon as the clients finish."""

    def __init__(self, subject: Subject, rho: float, progress: StepCallback, expected: int) -> None:
        """`expected` is the number of clients; 0 if it is not known."""
        self.subject, self.rho, self.progress, self.expected = subject, rho, progress, expected
        self.total, self.weight, self.finished = 0.0, 0, 0  # the total is weighted by the clients' samples

    def done(self, clients: Index, w: Tensor) -> None:
        for i, local in zip(clients.tolist(), w, strict=True):
            n = int(self.subject.data.sizes[i])
            self.total += n * worst_rise(self.subject.client(i), local, self.rho, 1, no_progress)
            self.weight, self.finished = self.weight + n, self.finished + 1
            self.progress(self.finished, max(self.expected, self.finished) + 1)

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from ....core.hyper import hyper
from ....core.oracle import unit
from ....core.progress import Steps
from ....data.types import Index
from ..measure import Finding, Measure, Measured
from ..subject import RoundObserver, Subject


class FlatnessIncompatibility(Measure):
    """How much the clients' rises of the loss differ at the global model: Delta_FI (Xiao et al., 2026, Def. 1).

    Delta_FI is the population variance over clients of s_i = F_i(w + rho unit(d_i)) - F_i(w), for a fixed
    number of clients, evenly spaced among all clients. d_i is the gradient of F_i (Def. 1); or, as in the
    paper's Fig. 8, the direction in which the method itself perturbs client i at the first local step of the next
    round, which is (1 - gamma_l) h + gamma_l g_i for FedVSSAM. Clients that the method does not perturb are
    left out. One client has no variance, so fewer than two clients give no value.
    """

    precision = ("clients",)

    rho: float = hyper(0.05, "length of the steps, in the unit of the parameters", low=0)
    clients: int = hyper(50, "how many clients", low=2)
    direction: Literal["gradient", "method"] = hyper(
        "gradient", "each client's full gradient, or the method's own first perturbation, which needs a round"
    )

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        chosen = subject.some_clients(self.clients)
        observer = _Rises(subject, self.rho, len(chosen), progress)
        if self.direction == "gradient":
            for i in chosen.tolist():
                observer.add(i, subject.client(i).gradient(subject.w))
        else:
            subject.next_round(chosen, observer)
        rises = observer.rises
        values = {"flatness_incompatibility": Measured(float(np.var(rises)))} if len(rises) > 1 else {}
        samples = f"{len(chosen)} of {subject.data.clients} clients, of each at most {subject.max_samples:,} samples"
        return self.finding(subject, values, samples=samples, used=subject.used_of(chosen))


class _Rises(RoundObserver):
    """The rises s_i of some clients, along given directions or, in an observed round, the method's perturbations."""

    def __init__(self, subject: Subject, rho: float, clients: int, progress: Steps) -> None:
        self.subject, self.rho, self.clients, self.progress = subject, rho, clients, progress
        self.rises: list[float] = []

    def add(self, i: int, d: Tensor) -> None:
        """Add the rise of client `i` along `d` (d,)."""
        F, w = self.subject.client(i), self.subject.w
        self.rises.append(F.loss(w + self.rho * unit(d)) - F.loss(w))
        self.progress(len(self.rises), self.clients)

    def step(self, clients: Index, k: int, w: Tensor, perturbation: Tensor) -> None:
        if k > 0:
            return
        for i, d in zip(clients.tolist(), perturbation, strict=True):
            if d.any():
                self.add(i, d)

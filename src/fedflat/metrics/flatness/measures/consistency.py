from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ....core.hyper import hyper
from ....core.progress import Steps
from ....data.types import Index
from ..measure import Finding, Measure, Measured
from ..subject import RoundObserver, Subject


class Consistency(Measure):
    """How far local models end from the server's next one: mean over the cohort of ||w_i - w^{t+1}||^2.

    FedSMOO's consistency (Sun et al., 2023, Table 2), computed for the next round. The paper's text and code
    measure from w^{t+1}; the heading of its table measures from w^t, which is origin = "current". Small values mean
    consistent clients.
    """

    needs_round = True
    origin: Literal["next", "current"] = hyper("next", "measured from w^{t+1}, or from w^t, where the round began")

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        moves = _Moves(subject.w, progress)
        after = subject.next_round(None, moves).after
        progress(moves.clients, moves.clients)
        # mean ||w_i - a||^2 = mean ||m_i||^2 - 2 <mean m_i, a - w^t> + ||a - w^t||^2 for the origin a.
        a = (after if self.origin == "next" else subject.w).double() - moves.w
        value = moves.squares / moves.clients - 2 * float(moves.total @ a) / moves.clients + float(a @ a)
        return self.finding(subject, {"consistency": Measured(value)}, samples="the clients' own batches")


class _Moves(RoundObserver):
    """Sums the clients' moves m_i = w_i - w^t and their squares, so that no local model is kept."""

    def __init__(self, w: Tensor, progress: Steps) -> None:
        self.w, self.progress = w.double(), progress
        self.total, self.squares, self.clients = torch.zeros_like(self.w), 0.0, 0

    def done(self, clients: Index, w: Tensor) -> None:
        moves = w.double() - self.w
        self.total += moves.sum(0)
        self.squares += float((moves**2).sum())
        self.clients += len(clients)
        self.progress(self.clients, self.clients + 1)  # the number of clients is known only after the round

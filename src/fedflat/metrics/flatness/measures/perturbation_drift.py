from __future__ import annotations

import numpy as np
from torch import Tensor

from ....core.hyper import hyper
from ....core.oracle import unit
from ....core.progress import Steps
from ....data.types import Index
from ..measure import Finding, Measure, Measured
from ..subject import RoundObserver, Subject


class PerturbationDrift(Measure):
    """How far the clients' perturbations point from the global one: PD (Fan et al., 2024), from 0 to 1.

    PD = mean over clients i and local steps k of ||delta_k - delta_ik|| / 2 in the next round. Both
    vectors have length 1: delta_ik points from w_ik to the point at which the method computes client i's descent
    gradient, and delta_k = unit(grad F(w_k)) with w_k = w^t + mean_i (w_ik - w^t). If the round ended at step k,
    w_k would be the server's model with server_lr = 1. Clients that have finished keep their last model. F is the
    pooled loss of all clients; its gradient has the direction of the paper's sum of gradients if all clients hold the
    same number of samples.

    The steps k are evenly spaced over the local steps of the client with the most samples. Where a method does
    not perturb (FedAvg always, FedLESAM in a client's first round), delta_ik is undefined and left out of
    the mean; for a method that never perturbs, there is no value.
    """

    needs_round = True
    precision = ("steps",)

    steps: int = hyper(5, "local steps to look at, at most; each costs a gradient; 0 is all", low=0)

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        stride = 1
        if self.steps:
            longest = _StepCounter()
            subject.next_round(np.array([subject.data.sizes.argmax()]), longest)
            stride = -(-longest.steps // self.steps)
        models = _GlobalModels(subject.w, stride)
        subject.next_round(None, models)
        if not models.perturbed:
            return self.finding(subject, {})
        directions: dict[int, Tensor] = {}
        total = len(models.moves) + 2  # two rounds and the gradients between them
        for k in models.moves:
            progress(1 + len(directions), total)
            directions[k] = unit(subject.pooled.gradient(models.mean(k)))
        progress(total - 1, total)
        drifts = _Drifts(directions)
        subject.next_round(None, drifts)
        progress(total, total)
        return self.finding(subject, {"perturbation_drift": Measured(drifts.total / drifts.number)})


class _StepCounter(RoundObserver):
    """Counts local steps."""

    steps = 0

    def step(self, clients: Index, k: int, w: Tensor, perturbation: Tensor) -> None:
        self.steps = max(self.steps, k + 1)


class _GlobalModels(RoundObserver):
    """The mean of the clients' models at every `stride`-th local step, from sums of their moves from `w` (d,)."""

    def __init__(self, w: Tensor, stride: int) -> None:
        self.w, self.stride = w, stride
        self.moves: dict[int, Tensor] = {}  # by local step: the sum over clients, (d,) float64
        self.clients: dict[int, int] = {}  # by local step: the number of clients in the sum
        self.perturbed = False  # whether the method perturbed any client at these steps
        self._training: dict[int, int] = {}  # by local step: how many clients of the current group took it

    def step(self, clients: Index, k: int, w: Tensor, perturbation: Tensor) -> None:
        if k % self.stride == 0:
            self._training[k] = len(clients)
            self._add(k, w)
            self.perturbed = self.perturbed or bool(perturbation.any())

    def done(self, clients: Index, w: Tensor) -> None:
        # The clients with the most steps come first, of all clients and in each group, so every step is known by now.
        for k in self.moves:
            self._add(k, w[self._training.pop(k, 0) :])

    def mean(self, k: int) -> Tensor:
        """Return the server's model if the round ended at local step `k`, (d,)."""
        return (self.w.double() + self.moves[k] / self.clients[k]).to(self.w)

    def _add(self, k: int, w: Tensor) -> None:
        move = (w.double() - self.w.double()).sum(0)
        self.moves[k] = self.moves[k] + move if k in self.moves else move
        self.clients[k] = self.clients.get(k, 0) + len(w)


class _Drifts(RoundObserver):
    """Sums half the distance between the clients' unit perturbations and the global ones."""

    def __init__(self, directions: dict[int, Tensor]) -> None:
        """Start with no client; `directions` are the global perturbations by local step, each (d,), of length 1."""
        self.directions = directions
        self.total, self.number = 0.0, 0  # over all clients and steps that were perturbed

    def step(self, clients: Index, k: int, w: Tensor, perturbation: Tensor) -> None:
        if k not in self.directions:
            return
        some = perturbation[perturbation.any(-1)]
        self.total += float((unit(some) - self.directions[k]).double().norm(dim=-1).sum()) / 2
        self.number += len(some)

"""Accuracy and loss of one model: over a set of samples, and over each client's own samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..core.errors import InputError
from ..core.objective import Objective
from ..data.federated import FederatedData, Holdings, Index

SAMPLES_AT_ONCE = 1024


@dataclass(frozen=True)
class Evaluation:
    """Loss and correctness of every sample."""

    loss: Tensor  # (n,)
    correct: Tensor  # (n,) bool

    @property
    def mean_loss(self) -> float:
        return float(self.loss.double().mean())

    @property
    def accuracy(self) -> float:
        """Share of correct samples, in [0, 1]."""
        return float(self.correct.double().mean())


@dataclass(frozen=True)
class ClientSpread:
    """Accuracy of one model on the samples of each client, in [0, 1]."""

    mean: float
    std: float  # population standard deviation over clients
    worst: float
    best: float


def score(
    objective: Objective, w: Tensor, x: Tensor, y: Tensor, prepare: Callable[[Tensor], Tensor] = torch.clone
) -> Evaluation:
    """Loss and correctness of the model `w` (d,) on each stored sample, in evaluation mode.

    `prepare` turns stored samples, some of `x` (n, *shape), into the model's input.
    """
    losses, correct = [], []
    with torch.inference_mode(), objective.evaluating():
        for some_x, some_y in zip(torch.split(x, SAMPLES_AT_ONCE), torch.split(y, SAMPLES_AT_ONCE), strict=True):
            logits = objective.logits(w, prepare(some_x).clone())  # aligned memory: processes agree to the last bit
            losses.append(cross_entropy(logits, some_y, reduction="none"))
            correct.append(logits.argmax(-1) == some_y)
    return Evaluation(torch.cat(losses), torch.cat(correct))


def per_client(scores: Evaluation, holdings: Holdings | FederatedData) -> NDArray[np.float64]:
    """Accuracy on the samples that each client holds, (clients,), from the scores of all training samples."""
    hits = scores.correct.cpu().numpy()[holdings.members].astype(float)
    result: NDArray[np.float64] = np.add.reduceat(hits, holdings.offsets[:-1]) / holdings.sizes
    return result


def validation_accuracies(objective: Objective, w: Tensor, data: FederatedData) -> NDArray[np.float64]:
    """Accuracy of the model `w` (d,) on each client's validation samples, (clients,).

    Raises InputError for data without validation samples.
    """
    if data.validation is None:
        raise InputError("data has no validation samples; set data.validation")
    return _accuracies(objective, w, data, data.validation)


def client_accuracies(objective: Objective, w: Tensor, data: FederatedData, clients: Index) -> NDArray[np.float64]:
    """Accuracy of the model `w` (d,) on the training samples of each of `clients` (c,): (c,)."""
    parts = Holdings(data.members, data.offsets).parts()
    return _accuracies(objective, w, data, Holdings.of([parts[client] for client in clients]))


def _accuracies(objective: Objective, w: Tensor, data: FederatedData, holdings: Holdings) -> NDArray[np.float64]:
    """Accuracy on the samples of `data` that each client holds; the samples that nobody holds are not looked at."""
    different, where = np.unique(holdings.members, return_inverse=True)
    rows = torch.from_numpy(different).to(data.y.device)
    scores = score(objective, w, data.stored(rows), data.y[rows], data.preparation)
    return per_client(scores, Holdings(where, holdings.offsets))


def held_loss(scores: Evaluation, data: FederatedData) -> float:
    """Mean loss over the samples that clients hold, from the scores of all training samples."""
    return float(scores.loss.double().cpu()[torch.from_numpy(data.held(slice(None)))].mean())


def spread(accuracies: NDArray[np.float64]) -> ClientSpread:
    """Mean, spread and extremes of the clients' accuracies (clients,)."""
    a = accuracies
    return ClientSpread(float(a.mean()), float(a.std()), float(a.min()), float(a.max()))

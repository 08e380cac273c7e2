"""Accuracy and loss of one model: over a set of samples, and over each client's own samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError
from ..core.objective import Objective
from ..core.task import FORMS, Kind
from ..data.federated import FederatedData, Holdings
from ..data.preparation import to_device
from ..data.types import Index, Members
from .classification import Collector
from .positions import TOTALS, right_shares

SAMPLES_AT_ONCE = 1024  # in evaluation; fewer if they or their scores have more than 4,096 numbers each
NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Evaluation:
    """Loss and correctness of every sample.

    A sample with several labels is correct if all its labels are. A sample with a label for each position is correct to
    the share of its positions, without ignored ones, that are. So each sample has the same weight, as in the mean loss.
    """

    loss: Tensor  # (n,)
    correct: Tensor  # (n,) bool, or float64 shares in [0, 1]; empty in regression
    further: dict[str, float] = field(default_factory=dict)  # other metrics of the task, by name

    @property
    def mean_loss(self) -> float:
        return float(self.loss.double().mean())

    @property
    def accuracy(self) -> float:
        """Share of correct samples, in [0, 1]."""
        return float(self.correct.double().mean())

    @property
    def numbers(self) -> dict[str, float]:
        """Accuracy (if defined), loss, and the other metrics of the task, by name."""
        accuracy = {"accuracy": self.accuracy} if len(self.correct) else {}
        return accuracy | {"loss": self.mean_loss} | self.further


def score(
    objective: Objective,
    w: Tensor,
    x: Tensor,
    y: Tensor,
    prepare: Callable[[Tensor], Tensor] = torch.clone,
    collector: Collector | None = None,
) -> Evaluation:
    """Compute loss and correctness of the model `w` (d,) on each stored sample, in evaluation mode.

    `prepare` turns stored samples, some of `x` (n, *shape), into the model's input. collector: of further metrics.
    """
    kind, losses, outputs = objective.task.kind, [], []
    totals = TOTALS[kind]() if kind in TOTALS else None
    with torch.inference_mode(), objective.evaluating():
        one = objective.logits(w, prepare(to_device(x[:1], y.device))).numel() if totals else 0
        some = samples_at_once(x, one)
        for some_x, some_y in zip(torch.split(x, some), torch.split(y, some), strict=True):
            on_device = to_device(some_x, some_y.device)  # samples may stay on the host
            logits = objective.logits(w, prepare(on_device).clone())  # aligned memory: processes agree to the last bit
            losses.append(objective.task.each(logits, some_y))
            if collector is not None:
                collector.add(logits, some_y)
            # Scores of classes are not kept: there may be many.
            if totals is not None:
                on_host = logits.to(w.device), some_y.to(w.device)  # the device of the samples may have no float64
                totals.add(*on_host)
                outputs.append(right_shares(*on_host, kind))
            else:
                outputs.append(logits.argmax(-1) == some_y if kind == "classification" else logits)
    parts = (torch.cat(losses), torch.cat(outputs), y)
    found = _evaluation(kind, *(part.to(w.device) for part in parts))
    further = found.further | (totals.values() if totals else {}) | (collector.values() if collector else {})
    return replace(found, further=further)


def samples_at_once(x: Tensor, scores: int = 0) -> int:
    """Return how many of the samples `x` (n, *shape) are evaluated at once, so that memory is bounded.

    scores: number of scores of a sample.
    """
    return max(1, min(SAMPLES_AT_ONCE, NUMBERS_AT_ONCE // max(1, x[:1].numel(), scores)))


def _evaluation(kind: Kind, loss: Tensor, outputs: Tensor, y: Tensor) -> Evaluation:
    """Make the evaluation of a task. outputs: correctness of each sample (n,), or the scores (n, k)."""
    if FORMS[kind].are_classes:
        return Evaluation(loss, outputs)
    if kind == "multi-label":
        predicted = (outputs > 0).eq(y > 0.5)
        return Evaluation(loss, predicted.all(-1), multi_label_numbers(outputs > 0, y > 0.5))
    return Evaluation(loss, loss.new_empty(0, dtype=torch.bool), regression_numbers(outputs.double(), y.double()))


def multi_label_numbers(predicted: Tensor, y: Tensor) -> dict[str, float]:
    """Compute the share of correct labels and the mean F1 from predicted and true labels (n, k) bool.

    For each label, F1 = 2 TP / (2 TP + FP + FN); for a label that is neither predicted nor true in any sample F1 = 0,
    as in scikit-learn.
    """
    hits, wrong = (predicted & y).sum(0).double(), (predicted != y).sum(0).double()
    f1 = 2 * hits / (2 * hits + wrong).clamp(min=1)
    return {"label_accuracy": float((predicted == y).double().mean()), "macro_f1": float(f1.mean())}


def regression_numbers(predicted: Tensor, y: Tensor) -> dict[str, float]:
    """Compute mean squared error, its root, mean absolute error and R2 from predicted and true numbers (n, k).

    R2 = 1 - squared error / squared deviation from the mean, averaged over the k outputs. Outputs whose true numbers do
    not vary are left out of R2; if no output varies, there is no R2.
    """
    error, deviation = (predicted - y).square().sum(0), (y - y.mean(0)).square().sum(0)
    varies = deviation > 0
    mse = (predicted - y).square().mean()
    numbers = {"rmse": float(mse.sqrt()), "mse": float(mse), "mae": float((predicted - y).abs().mean())}
    if varies.any():
        numbers["r2"] = float((1 - error[varies] / deviation[varies]).mean())
    return numbers


def own_test_accuracies(scores: Evaluation, data: FederatedData) -> NDArray[np.float64]:
    """Compute the accuracy on each client's own test samples, for clients with some, from scores of all test samples.

    Raises InputError for data whose clients have no test samples of their own.
    """
    if data.own_test is None:
        raise InputError("data: clients have no test samples of their own")
    return per_client(scores, data.own_test.without_empty())


def per_client(scores: Evaluation, holdings: Holdings | FederatedData) -> NDArray[np.float64]:
    """Compute the accuracy on the samples that each client holds, (clients,), from scores of all training samples.

    Raises InputError in regression, which has no accuracy.
    """
    if not len(scores.correct):
        raise InputError("accuracy is not defined in regression")
    hits = scores.correct.cpu().numpy()[holdings.members].astype(float)
    result: NDArray[np.float64] = np.add.reduceat(hits, holdings.offsets[:-1]) / holdings.sizes
    return result


def validation_accuracies(objective: Objective, w: Tensor, data: FederatedData) -> NDArray[np.float64]:
    """Compute the accuracy of the model `w` (d,) on each client's validation samples, for clients with some.

    Raises InputError for data without validation samples.
    """
    if data.validation is None:
        raise InputError("data has no validation samples; set data.validation")
    return _accuracies(objective, w, data, data.validation)


def client_accuracies(objective: Objective, w: Tensor, data: FederatedData, clients: Index) -> NDArray[np.float64]:
    """Compute the accuracy of the model `w` (d,) on the training samples of each of `clients` (c,): (c,)."""
    parts = Holdings(data.members, data.offsets).parts()
    return _accuracies(objective, w, data, Holdings.of([parts[client] for client in clients]))


def _accuracies(objective: Objective, w: Tensor, data: FederatedData, holdings: Holdings) -> NDArray[np.float64]:
    """Compute the accuracy on the samples of `data` that each client holds, for clients with some."""
    different, where = np.unique(holdings.members, return_inverse=True)
    return per_client(score_samples(objective, w, data, different), Holdings(where, np.unique(holdings.offsets)))


def score_samples(objective: Objective, w: Tensor, data: FederatedData, samples: Members) -> Evaluation:
    """Compute `score` on the training samples with the indices `samples` (n,)."""
    rows = torch.from_numpy(samples).to(data.y.device)
    return score(objective, w, data.stored(rows), data.y[rows], data.preparation)


def score_test_samples(objective: Objective, w: Tensor, data: FederatedData, samples: Members) -> Evaluation:
    """Compute `score` on the test samples with the indices `samples` (n,). Raises InputError without a test set."""
    if data.test is None:
        raise InputError("data has no test set")
    x, y = data.test
    rows = torch.from_numpy(samples)
    return score(objective, w, x[rows.to(x.device)], y[rows.to(y.device)], data.preparation)


def spread(accuracies: NDArray[np.float64]) -> dict[str, float]:
    """Compute the mean, population standard deviation, worst and best of clients' accuracies (clients,), by name.

    `worst_tenth` is the mean of the worst tenth of the clients, rounded up to whole clients.
    """
    a, tenth = accuracies, -(-len(accuracies) // 10)
    values = {"mean": float(a.mean()), "std": float(a.std()), "worst": float(a.min()), "best": float(a.max())}
    return values | {"worst_tenth": float(np.sort(a)[:tenth].mean())}


def drift(local: Tensor, received: Tensor) -> Tensor:
    """Compute ||w_i - w^t|| of each client, (clients,), from local models (clients, d) and the received one (d,)."""
    distances: Tensor = (local - received).norm(dim=-1)
    return distances

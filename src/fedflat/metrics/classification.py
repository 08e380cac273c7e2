"""Metrics of classifiers beside the accuracy, by name; by scikit-learn's definitions where it has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError
from ..core.registry import known_names
from ..core.task import Kind

BINS = 15  # of confidences, for the calibration error (Guo et al., ICML 2017)


@dataclass(frozen=True)
class Predictions:
    """What a classifier says of n samples."""

    y: NDArray[np.int64]  # (n,) the true classes
    predicted: NDArray[np.int64]  # (n,)
    confidence: NDArray[np.float64]  # (n,) the probability of the predicted class
    margin: NDArray[np.float64]  # (n,) of the last class over the first; equal for equal scores, unlike a softmax
    names: tuple[str, ...]  # of all classes, which need not occur in y

    @property
    def present(self) -> list[int]:
        """The classes that occur in `y`, ascending."""
        return [int(c) for c in np.unique(self.y)]


def recall(of: Predictions) -> dict[str, float]:
    """Return the share of its samples that are recognised for each class that occurs, as `recall/NAME`."""
    from sklearn.metrics import recall_score  # takes a second to import

    found = recall_score(of.y, of.predicted, labels=of.present, average=None)
    return {f"recall/{of.names[c]}": float(value) for c, value in zip(of.present, found, strict=True)}


def macro_f1(of: Predictions) -> dict[str, float]:
    """Return the mean over classes of F1, over the classes that occur in `y` or among the predictions."""
    from sklearn.metrics import f1_score

    return {"macro_f1": float(f1_score(of.y, of.predicted, average="macro"))}


def balanced_accuracy(of: Predictions) -> dict[str, float]:
    """Return the mean over the classes that occur in `y` of their recall."""
    from sklearn.metrics import recall_score

    return {"balanced_accuracy": float(recall_score(of.y, of.predicted, labels=of.present, average="macro"))}


def auc(of: Predictions) -> dict[str, float]:
    """Return the area under the receiver operating characteristic of class 1; nothing if only one class occurs."""
    from sklearn.metrics import roc_auc_score

    return {"auc": float(roc_auc_score(of.y, of.margin))} if len(of.present) == 2 else {}


def calibration_error(of: Predictions) -> dict[str, float]:
    """Return the expected calibration error: the mean over samples of |accuracy - mean confidence| of their bin.

    The 15 bins of confidences have equal widths; a confidence on a border belongs to the lower bin.
    """
    place = np.clip(np.ceil(of.confidence * BINS).astype(int) - 1, 0, BINS - 1)
    difference = (of.predicted == of.y).astype(float) - of.confidence
    return {"calibration_error": float(np.abs(np.bincount(place, difference, BINS)).sum() / len(of.y))}


METRICS: dict[str, Callable[[Predictions], dict[str, float]]] = {
    one.__name__.replace("_", "-"): one for one in (recall, macro_f1, balanced_accuracy, auc, calibration_error)
}


def check_metrics(names: Sequence[str], kind: Kind, classes: int) -> tuple[str, ...]:
    """Return the names of metrics. Raises InputError for an unknown name, or one that the task does not have."""
    if isinstance(names, str):
        raise InputError(f"metrics must be a list of names such as ['recall'], got {names!r}")
    for name in names:
        if name not in METRICS:
            raise InputError(f"metrics: {name!r} is unknown; {known_names(name, METRICS)}")
        if kind != "classification":
            raise InputError(f"metrics: {name} is for classes, and the task is {kind}, which has metrics of its own")
        if name == "auc" and classes != 2:
            raise InputError(f"metrics: auc is for two classes, and there are {classes}")
    return tuple(dict.fromkeys(names))


class Collector:
    """Collects the predictions of a classifier, batch by batch, for metrics by name."""

    def __init__(self, metrics: Sequence[str], names: Sequence[str]) -> None:
        """Start with no sample. names: of the classes."""
        self._metrics, self._names = metrics, tuple(names)
        self._parts: list[Tensor] = []

    def add(self, scores: Tensor, y: Tensor) -> None:
        """Add the scores (b, classes) of samples of the classes `y` (b,)."""
        if self._metrics:
            confidence, predicted = scores.double().softmax(-1).max(-1)
            margin = scores[:, -1].double() - scores[:, 0].double()
            self._parts.append(torch.stack([y.double(), predicted.double(), confidence, margin]).cpu())

    def values(self) -> dict[str, float]:
        """Return the metrics by name; empty without a sample."""
        if not self._parts:
            return {}
        y, predicted, confidence, margin = torch.cat(self._parts, dim=1).numpy()
        of = Predictions(y.astype(np.int64), predicted.astype(np.int64), confidence, margin, self._names)
        return {name: value for one in self._metrics for name, value in METRICS[one](of).items()}

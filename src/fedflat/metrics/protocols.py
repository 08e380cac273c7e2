"""Protocols: how papers compute the accuracy that they report from a training curve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Protocol = Literal["last", "final", "best-validation", "best-test"]
COLUMNS = ("validation_accuracy", "gradients", "bytes_down", "bytes_up")  # of a run's metrics
# What a run's test set measures, at most 1: in regression R2, which is negative if the mean predicts better.
SCORES = {"test_accuracy": "test accuracy", "test_r2": "test R²"}
WINDOW = 21  # evaluations in the smoothing window; FedSMOO states a Hanning window but not its length


MUCH = 0.2  # share of all evaluations; a mean over a larger share covers much of the training


def long_mean(averaged: int, evaluations: int) -> str | None:
    """Return a warning if the mean of the last `averaged` of all `evaluations` covers too many of them, else None."""
    if averaged <= 1 or averaged <= MUCH * evaluations:
        return None
    return (
        f"the accuracy is the mean of the last {averaged} of {evaluations} evaluations, so it has much of the training "
        "in it; a smaller `last` has less, and the protocol `final` shows the final model"
    )


def score_name(numbers: Iterable[str]) -> str | None:
    """Return the name of the score among the names of a run's numbers: "test_accuracy", "test_r2", or None."""
    known = set(numbers)
    return next((name for name in SCORES if name in known), None)


@dataclass(frozen=True)
class Reached:
    """The first round that reached a target accuracy, and the cost of all clients up to it."""

    rounds: int
    gradients: float  # minibatch gradients
    bytes: float  # sent both ways
    vectors: float  # sent both ways, in model-sized vectors


@dataclass(frozen=True)
class AccuracyCurve:
    """The evaluated rounds of a run. In regression, R2 stands in for the accuracy."""

    rounds: NDArray[np.int64]  # (n,), from 1
    accuracy: Values  # (n,) on the test set, in [0, 1]; R2 is at most 1
    validation: Values | None  # (n,) mean over the clients' validation sets
    gradients: Values  # (n,) so far
    bytes: Values  # (n,) so far, both ways
    vector_bytes: float  # of one model-sized vector

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], vector_bytes: float) -> AccuracyCurve:
        """Make the curve from the rows of a run's metrics. Rounds without a test accuracy or R2 are left out."""
        score = next((name for name in SCORES if any(row.get(name) is not None for row in rows)), "test_accuracy")
        kept = [row for row in rows if row.get(score) is not None]
        columns = {name: np.array([row.get(name) for row in kept], dtype=float) for name in (score, *COLUMNS)}
        validated = all(row.get("validation_accuracy") is not None for row in kept)
        return cls(
            rounds=np.array([row["t"] + 1 for row in kept], dtype=np.int64),
            accuracy=columns[score],
            validation=columns["validation_accuracy"] if validated and kept else None,
            gradients=columns["gradients"],
            bytes=columns["bytes_down"] + columns["bytes_up"],
            vector_bytes=vector_bytes,
        )

    def last(self, k: int) -> tuple[float, float]:
        """Return the mean and population standard deviation of the last `k` accuracies (FedGF: k = 100)."""
        tail = self.accuracy[-k:]
        return float(tail.mean()), float(tail.std())

    @property
    def final(self) -> float:
        """The last accuracy (FedVSSAM, FedSMOO)."""
        return float(self.accuracy[-1])

    @property
    def best_on_test(self) -> float:
        """The highest accuracy, as FL-Simulator prints it: chosen on the test set, so it is too optimistic."""
        return float(self.accuracy.max())

    def best_on_validation(self) -> tuple[int, float] | None:
        """Return the first round with the best validation accuracy and its test accuracy; None without validation."""
        if self.validation is None:
            return None
        place = int(self.validation.argmax())
        return int(self.rounds[place]), float(self.accuracy[place])

    def smoothed(self, window: int = WINDOW) -> Values:
        """Average accuracies (n,) under a Hanning window of `window` evaluations, which is cut at the ends."""
        weights = np.hanning(window + 2)[1:-1]  # without the zeros at its ends
        around = ((window - 1) // 2, window // 2)
        total = np.convolve(np.pad(self.accuracy, around), weights, mode="valid")
        present = np.convolve(np.pad(np.ones_like(self.accuracy), around), weights, mode="valid")
        values: Values = total / present
        return values

    def reached(self, target: float, smooth: bool = False) -> Reached | None:
        """Find when the accuracy, smoothed or not, was first at least `target`; None if it never was."""
        places = np.flatnonzero((self.smoothed() if smooth else self.accuracy) >= target)
        if not len(places):
            return None
        place = int(places[0])
        sent = float(self.bytes[place])
        return Reached(int(self.rounds[place]), float(self.gradients[place]), sent, sent / self.vector_bytes)

"""The score of a run, such as its accuracy, and protocols: how papers compute it from a training curve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError

Values = NDArray[np.float64]
Protocol = Literal["last", "final", "best-validation", "best-test"]
COLUMNS = ("validation_accuracy", "gradients", "bytes_down", "bytes_up")  # of a run's metrics
WINDOW = 21  # evaluations in the smoothing window; FedSMOO states a Hanning window but not its length


@dataclass(frozen=True)
class Score:
    """What a run's test set measures: the number that reports compare."""

    title: str
    least: float = 0.0  # bounds of targets
    most: float = 1.0
    is_share: bool = True  # whether it is shown in per cent
    larger_is_better: bool = True

    @property
    def factor(self) -> float:
        """The factor to the unit in which the score is shown."""
        return 100.0 if self.is_share else 1.0

    @property
    def sign(self) -> int:
        """1 if larger is better, else -1."""
        return 1 if self.larger_is_better else -1

    @property
    def heading(self) -> str:
        """The title without "test", as the beginning of a heading."""
        name = self.title.removeprefix("test ")
        return name[0].upper() + name[1:]

    @property
    def axis(self) -> str:
        """The title with the unit."""
        return f"{self.title} %" if self.is_share else self.title

    def text(self, value: float, decimals: int = 2) -> str:
        """Format a value with its unit."""
        return f"{self.factor * value:.{decimals}f}" + (" %" if self.is_share else "")

    def check_targets(self, targets: Sequence[float]) -> None:
        """Raise InputError for a target that is out of range."""
        for target in targets:
            if not (isinstance(target, int | float) and self.least < target < self.most):
                raise InputError(f"targets: {target} is no {self.title} in ({self.least:g}, {self.most:g})")


# By the name among a run's numbers; a run's score is the first that it has. R2 of a regression is at most 1, and
# negative if the mean predicts better.
SCORES = {
    "test_perplexity": Score("test perplexity", 1.0, inf, is_share=False, larger_is_better=False),
    "test_mean_iou": Score("test mean IoU"),
    "test_accuracy": Score("test accuracy"),
    "test_r2": Score("test R²"),
}
MUCH = 0.2  # share of all evaluations; a mean over a larger share covers much of the training


def long_mean(averaged: int, evaluations: int) -> str | None:
    """Return a warning if the mean of the last `averaged` of all `evaluations` covers too many of them, else None."""
    if averaged <= 1 or averaged <= MUCH * evaluations:
        return None
    return (
        f"the score is the mean of the last {averaged} of {evaluations} evaluations, so it has much of the training "
        "in it; a smaller `last` has less, and the protocol `final` shows the final model"
    )


def score_name(numbers: Iterable[str]) -> str | None:
    """Return the name of the score among the names of a run's numbers; None without one."""
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
    """The evaluated rounds of a run. In other tasks than classification, their score stands in for the accuracy."""

    rounds: NDArray[np.int64]  # (n,), from 1
    accuracy: Values  # (n,) on the test set, in [0, 1]; or another score
    validation: Values | None  # (n,) mean over the clients' validation sets
    gradients: Values  # (n,) so far
    bytes: Values  # (n,) so far, both ways
    vector_bytes: float  # of one model-sized vector
    score: Score = SCORES["test_accuracy"]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], vector_bytes: float) -> AccuracyCurve:
        """Make the curve from the rows of a run's metrics. Rounds without the score are left out."""
        score = score_name(name for row in rows for name, value in row.items() if value is not None) or "test_accuracy"
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
            score=SCORES[score],
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
        """The best accuracy, as FL-Simulator prints it: chosen on the test set, so it is too optimistic."""
        return self.score.sign * float((self.score.sign * self.accuracy).max())

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
        """Find when the accuracy, smoothed or not, was first at least as good as `target`; None if it never was."""
        values, sign = self.smoothed() if smooth else self.accuracy, self.score.sign
        places = np.flatnonzero(sign * values >= sign * target)
        if not len(places):
            return None
        place = int(places[0])
        sent = float(self.bytes[place])
        return Reached(int(self.rounds[place]), float(self.gradients[place]), sent, sent / self.vector_bytes)

"""Metrics of tasks with a label for each position: perplexity of texts, and mean IoU of segmented pictures.

Each position that is not ignored counts once, whichever sample it is in.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..core.task import FORMS, IGNORED, Kind, position_losses


class Totals(Protocol):
    """Sums over the positions of all samples, batch by batch."""

    def add(self, scores: Tensor, y: Tensor) -> None:
        """Add the scores of samples with the labels `y` (n, *positions)."""

    def values(self) -> dict[str, float]:
        """Return the metric by its name."""


class Perplexity:
    """The exponential of the mean cross-entropy of a token, over the tokens of all texts."""

    def __init__(self) -> None:
        self._loss, self._tokens = 0.0, 0

    def add(self, scores: Tensor, y: Tensor) -> None:
        self._loss += float(position_losses(scores, y, FORMS["next-token"]).sum(dtype=torch.float64))
        self._tokens += int((y != IGNORED).sum())

    def values(self) -> dict[str, float]:
        return {"perplexity": float(torch.tensor(self._loss / self._tokens, dtype=torch.float64).exp())}


class MeanIoU:
    """The mean over classes of intersection over union (Jaccard index) of predicted and true pixels of all pictures.

    Classes that are neither predicted nor true in any pixel are left out, as in scikit-learn.
    """

    def __init__(self) -> None:
        self._counts: int | Tensor = 0  # (3, classes): pixels where a class is predicted, true, and both

    def add(self, scores: Tensor, y: Tensor) -> None:
        known, classes = y != IGNORED, scores.shape[1]
        predicted, true = scores.argmax(1)[known], y[known]
        parts = (predicted, true, true[predicted == true])
        self._counts = self._counts + torch.stack([torch.bincount(part, minlength=classes) for part in parts])

    def values(self) -> dict[str, float]:
        predicted, true, both = torch.as_tensor(self._counts).double()
        union = predicted + true - both
        return {"mean_iou": float((both / union)[union > 0].mean())}


TOTALS: dict[Kind, type[Totals]] = {"next-token": Perplexity, "segmentation": MeanIoU}


def right_shares(scores: Tensor, y: Tensor, kind: Kind) -> Tensor:
    """Return the share of right positions of each sample, (n,) float64, over those that are not ignored."""
    right = scores.argmax(FORMS[kind].class_axis) == y
    return right.flatten(1).sum(1).double() / (y != IGNORED).flatten(1).sum(1)

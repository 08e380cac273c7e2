from __future__ import annotations

from typing import Literal

import torch

from ....core.hyper import hyper
from ....core.progress import Steps
from ..measure import Finding, LossMeasure, Measured
from ..subject import Subject
from .sharpness import worst_rise


class AdaptiveSharpness(LossMeasure):
    """The rise of the training loss at the worst point of a ball scaled by the weights: ||delta / T|| <= rho, T = |w|.

    This is ASAM's adaptive sharpness (Kwon et al., 2021, eq. 2). With steps = 1, the worst point is approximated by the
    first-order point delta = rho T^2 grad F / ||T grad F|| (eq. 3). With T = |w|, the measure does not change when the
    incoming weights and bias of ReLU units are multiplied by a > 0 and their outgoing weights are divided by a. With
    FedASAM's T, which has eta = 0.2 and biases = "one", it does change.
    """

    rho: float = hyper(0.5, "radius of the ball, in units of the weights' size", low=0)
    steps: int = hyper(1, "ascent steps; each costs a gradient on all samples", low=1)
    eta: float = hyper(0.0, "added to |w|, in the unit of the parameters", low=0)
    biases: Literal["size", "one"] = hyper("size", "T on biases: as on weights, or 1 as in released codes")

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        T = subject.w.abs() + self.eta
        if self.biases == "one":
            T = torch.where(subject.objective.space.is_weight(T.device), T, 1.0)
        rise = worst_rise(subject.pooled, subject.w, self.rho, self.steps, progress, T)
        return self.finding(subject, {"adaptive_sharpness": Measured(rise)})

from __future__ import annotations

from ....core.progress import Steps
from ..measure import Finding, LossMeasure, Measured
from ..subject import Subject


class GradientNorm(LossMeasure):
    """The length of the gradient of the training loss, ||grad F(w)||: how far w is from a stationary point.

    Measures of curvature say most about a model near a stationary point.
    """

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        gradient = subject.pooled.gradient(subject.w)
        progress(1, 1)
        return self.finding(subject, {"gradient_norm": Measured(float(gradient.double().norm()))})

from __future__ import annotations

from typing import Literal

import numpy as np

from ....core.hyper import hyper
from ....core.oracle import unit
from ....core.progress import Steps
from ..measure import Curve, Finding, LossMeasure, mean_with_interval
from ..subject import Subject
from .lpf import gaussians


class Radius(LossMeasure):
    """The training loss over the distance from the model: F(w + r v), ||v|| = 1 (Lee & Yoon, 2024, Figs 5, 9, 14).

    The paper does not state v. By default the loss is the mean over Gaussian directions v of length 1, which depend on
    `seed` alone, with 95 % intervals of that mean; with along = "gradient", v is the direction of the gradient. The
    result is a curve, not a number.
    """

    precision = ("points", "directions", "seed")

    largest: float = hyper(15.0, "largest distance, in the unit of the parameters", low=0, open_low=True)
    points: int = hyper(16, "distances, evenly spaced from 0", low=2)
    along: Literal["random", "gradient"] = hyper("random", "Gaussian directions, or the gradient")
    directions: int = hyper(10, "number of Gaussian directions", low=1)
    seed: int = hyper(0, "seed of the directions", low=0)

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        if self.along == "gradient":
            number, directions = 1, iter([subject.pooled.gradient(subject.w)])
        else:
            number, directions = self.directions, gaussians(self.seed, self.directions, subject.w)
        radii = np.linspace(0, self.largest, self.points)
        losses = np.full((number, self.points), subject.pooled.loss(subject.w))  # those at radius 0 stay
        for i, v in enumerate(map(unit, directions)):
            for k in range(1, self.points):
                losses[i, k] = subject.pooled.loss(subject.w + float(radii[k]) * v)
                progress(i * (self.points - 1) + k, number * (self.points - 1))
        means = [mean_with_interval(column) for column in losses.T]
        curve = Curve(
            x=radii.tolist(),
            y=[mean.value for mean in means],
            x_label="distance from the model (unit of the parameters)",
            y_label="training loss",
            error=[mean.error or 0.0 for mean in means] if len(losses) > 1 else None,
        )
        return self.finding(subject, {}, {"loss_along_radius": curve})

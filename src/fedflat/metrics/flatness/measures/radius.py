from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ....core.hyper import hyper
from ....core.oracle import unit
from ..measure import Curve, Finding, Measure, StepCallback, mean_with_interval
from ..subject import Subject
from .lpf import gaussians


class Radius(Measure):
    """The training loss over the distance from the model: F(w + r v), ||v|| = 1 (Lee & Yoon, 2024, Figs 5, 9, 14).

    The paper does not say which v: by default the mean over Gaussian directions of length 1, which depend on
    `seed` alone, with 95 % intervals of that mean; or the direction of the gradient. The result is a curve
    and no number.
    """

    precision = ("points", "directions", "seed")

    largest: float = hyper(15.0, "largest distance, in the unit of the parameters", low=0, open_low=True)
    points: int = hyper(16, "distances, evenly spaced from 0", low=2)
    along: Literal["random", "gradient"] = hyper("random", "Gaussian directions, or the gradient")
    directions: int = hyper(10, "number of Gaussian directions", low=1)
    seed: int = hyper(0, "seed of the directions", low=0)

    def measure(self, subject: Subject, progress: StepCallback) -> Finding:
        radii = np.linspace(0, self.largest, self.points)
        losses = np.array(list(self._losses(subject, radii, progress)))
        means = [mean_with_interval(column) for column in losses.T]
        curve = Curve(
            x=radii.tolist(),
            y=[mean.value for mean in means],
            x_label="distance from the model (unit of the parameters)",
            y_label="training loss",
            error=[mean.error or 0.0 for mean in means] if len(losses) > 1 else None,
        )
        return self.finding(subject, {}, {"loss_along_radius": curve})

    def _losses(self, subject: Subject, radii: NDArray[np.float64], progress: StepCallback) -> Iterator[list[float]]:
        """The loss at all radii, along one direction after another."""
        start, steps = subject.pooled.loss(subject.w), len(radii) - 1
        total = steps * (self.directions if self.along == "random" else 1)
        if self.along == "gradient":
            directions = iter([subject.pooled.gradient(subject.w)])
        else:
            directions = gaussians(self.seed, self.directions, subject.w)
        for i, v in enumerate(map(unit, directions)):
            row = [start]
            for k, r in enumerate(radii[1:], start=1):
                row.append(subject.pooled.loss(subject.w + float(r) * v))
                progress(i * steps + k, total)
            yield row

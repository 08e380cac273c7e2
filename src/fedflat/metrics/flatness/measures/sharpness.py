from __future__ import annotations

import torch
from torch import Tensor

from ....core.hyper import hyper
from ....core.oracle import unit
from ....core.progress import Steps
from ..measure import Finding, LossMeasure, Measured
from ..subject import Landscape, Mean, Subject


class Sharpness(LossMeasure):
    """The rise of the training loss at the worst point of a ball: max F(w + delta) - F(w), ||delta|| <= rho.

    With steps = 1, the worst point is approximated by the first-order point w + rho unit(grad F(w)); this is FedLESAM's
    global sharpness (Fan et al., 2024). Each further step ascends by rho and is projected onto the ball. The result is
    the highest rise of all these points, so that more steps never give a smaller value.
    """

    rho: float = hyper(0.05, "radius of the ball, in the unit of the parameters", low=0)
    steps: int = hyper(1, "ascent steps; each costs a gradient on all samples", low=1)

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        rise = worst_rise(subject.pooled, subject.w, self.rho, self.steps, progress)
        return self.finding(subject, {"sharpness": Measured(rise)})


def worst_rise(
    F: Landscape | Mean, w: Tensor, rho: float, steps: int, progress: Steps, scale: Tensor | float = 1.0
) -> float:
    """Compute max F(w + scale e) - F(w) at `w` (d,) over the points e, ||e|| <= rho, of `steps` ascent steps.

    `scale` (d,) stretches the ball. The ascent moves e along unit(scale grad F). Its step length is rho for any
    number of steps: on a quadratic e then turns like a power iteration with (H + lambda_max I) / 2; with lengths
    that decrease with the number of steps it would stop before the worst point.
    """
    start, e, highest = F.loss(w), torch.zeros_like(w), float("-inf")
    for step in range(steps):
        e = e + rho * unit(scale * F.gradient(w + scale * e))
        length = float(torch.linalg.vector_norm(e))
        if length > rho:
            e = e * (rho / length)  # the nearest point of the ball
        highest = max(highest, F.loss(w + scale * e))
        progress(step + 1, steps)
    return highest - start

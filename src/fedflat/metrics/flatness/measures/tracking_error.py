from __future__ import annotations

import numpy as np
import torch

from ....core.hyper import hyper
from ....core.oracle import unit
from ....core.progress import Steps
from ..measure import Finding, Measure, Measured
from ..subject import Landscape, Subject


class TrackingError(Measure):
    """How far the direction of the last step is from the gradient where it led to: ||h^t - grad F(w^t)||^2.

    The measure is from Xiao et al. (2026), Theorem 2, C.5 and Fig. 7. h^t is the direction of the step that led to w^t:
    w^t = w^{t-1} - eta h^t. Here eta is server_lr times the mean over clients of the sum of step sizes, or server_lr
    alone if server_lr_mode is absolute. For FedVSSAM, h^t is the h that the method keeps if all clients take the same
    number of steps. `tracking_cosine` is the cosine between h^t and the gradient. Before the first round, and after a
    round in which no client took a step, there is no h^t and no value. The gradient is a mean over random batches that
    depend on `seed` alone, so they are the same for every model. If the batches would hold as many samples as there are
    training samples, the gradient is the mean over all training samples.
    """

    needs_round = True
    precision = ("batches", "batch_size", "seed")

    batches: int = hyper(10, "batches", low=1)
    batch_size: int = hyper(512, "samples in a batch", low=1)
    seed: int = hyper(0, "seed of the batches", low=0)

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        members, number = subject.data.members, self.batches * self.batch_size
        if number < len(members):
            members = members[np.random.default_rng(self.seed).integers(len(members), size=number)]
        F = Landscape(subject.objective, subject.data, members, subject.memory)
        gradient = F.gradient(subject.w)
        progress(1, 1)
        values, h = {}, subject.direction
        if h is not None and torch.isfinite(h).all():
            error = float(((h - gradient).double() ** 2).sum())
            values = {"tracking_error": Measured(error), "tracking_cosine": Measured(float(unit(h) @ unit(gradient)))}
        return self.finding(subject, values, samples=f"gradient on {subject.part(len(F))}", used=len(F))

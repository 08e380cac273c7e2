from __future__ import annotations

import numpy as np

from ....core.hyper import hyper
from ....core.oracle import unit
from ..measure import Finding, Measure, Measured, StepCallback
from ..subject import Landscape, RoundObserver, Subject


class TrackingError(Measure):
    """How well the server's step follows the global gradient: ||h - grad F(w^t)||^2 (Xiao et al., 2026, Fig. 7).

    h = (w^t - w^{t+1}) / sum of lr is the step of the round that follows, per unit of local step size: for
    any method a gradient, for FedVSSAM with equal numbers of local steps and server_lr = 1, relative, the h
    that it has after the round. Any other server_lr multiplies h, but not `tracking_cosine`, the cosine between h
    and the gradient. The gradient is the mean over random batches that depend on `seed` alone, the same for every
    model, or over all training samples if the batches would hold as many.
    """

    needs_round = True
    precision = ("batches", "batch_size", "seed")

    batches: int = hyper(10, "batches", low=1)
    batch_size: int = hyper(512, "samples in a batch", low=1)
    seed: int = hyper(0, "seed of the batches", low=0)

    def measure(self, subject: Subject, progress: StepCallback) -> Finding:
        members, number = subject.data.members, self.batches * self.batch_size
        if number < len(members):
            members = members[np.random.default_rng(self.seed).integers(len(members), size=number)]
        F = Landscape(subject.objective, subject.data, members, subject.memory)
        gradient = F.gradient(subject.w)
        progress(1, 2)
        following = subject.next_round(None, RoundObserver())
        h = (subject.w - following.after) / following.lr_sum
        progress(2, 2)
        error = float(((h - gradient).double() ** 2).sum())
        values = {"tracking_error": Measured(error), "tracking_cosine": Measured(float(unit(h) @ unit(gradient)))}
        samples = f"gradient on {len(F):,} of {len(subject.data.members):,} training samples"
        return self.finding(subject, values, samples=samples)

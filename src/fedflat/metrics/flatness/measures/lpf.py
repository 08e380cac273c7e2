from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ....core.hyper import hyper
from ....core.progress import Steps
from ..measure import Finding, LossMeasure, mean_with_interval
from ..subject import Subject


class LPF(LossMeasure):
    """The training loss averaged over Gaussian noise on the parameters: E F(w + tau), tau ~ N(0, sigma^2 I).

    The low-pass filter of Bisla et al. (2022), with their sigma and number of draws. `lpf` is the averaged loss
    itself; `lpf_rise` = E F(w + tau) - F(w), about sigma^2 tr(H) / 2, is the part that depends on flatness.
    The noise depends on `seed` alone, so it is the same for all models of one size. The length of the noise is about
    sigma sqrt(d). `relative` averages |F(w + tau) - F(w)| / F(w) instead, which is undefined for a loss of exactly 0:
    then there is no value.
    """

    precision = ("draws", "seed")

    sigma: float = hyper(0.01, "standard deviation of the noise, in the unit of the parameters", low=0, open_low=True)
    draws: int = hyper(100, "noise vectors; each costs a pass over the samples", low=1)
    relative: bool = hyper(False, "the relative change of the loss instead of the loss")
    seed: int = hyper(0, "seed of the noise", low=0)

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        losses = np.zeros(self.draws)
        for i, noise in enumerate(gaussians(self.seed, self.draws, subject.w)):
            losses[i] = subject.pooled.loss(subject.w + self.sigma * noise)
            progress(i + 1, self.draws)
        start = subject.pooled.loss(subject.w)
        if not self.relative:
            values = {"lpf": mean_with_interval(losses), "lpf_rise": mean_with_interval(losses - start)}
            return self.finding(subject, values)
        values = {"lpf": mean_with_interval(np.abs(losses - start) / start)} if start > 0 else {}
        return self.finding(subject, values)


def gaussians(seed: int, number: int, like: Tensor) -> Iterator[Tensor]:
    """Yield `number` independent N(0, I) vectors (d,), one at a time; a larger number begins with the same vectors."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        yield torch.from_numpy(rng.standard_normal(len(like))).to(like)

"""An audit of private rounds: canaries in the sums of real rounds, and the epsilon that they prove at least.

Every client is a canary with a coordinate of its own, to which it sends far more than the clip allows. A coin says
whether it is in the data. Coordinates have independent noise and clients are sampled independently, so each canary is
a trial of its own: many canaries in one run, as in Steinke, Nasr and Jagielski (NeurIPS 2023), whose scores we count in
the classical way, with exact binomial intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import torch
from scipy.stats import beta

import fedflat as ff
from fedflat.core.method import Context
from fedflat.core.records import Model
from fedflat.methods import find
from fedflat.rounds.private_rounds import PrivateRounds

CANARIES = 500
LENGTH = 100.0  # of what a canary sends, in clips


@dataclass(frozen=True)
class Scores:
    """How much each canary looks as if it were in the data, (trials,): of those that are, and of those that are not."""

    inside: np.ndarray
    outside: np.ndarray


def scores(privacy: ff.Privacy, rounds: int, runs: int, seed: int = 0) -> Scores:
    """Return the scores of the canaries of several runs: the log of the likelihood ratio under the stated mechanism."""
    found, rng = [], np.random.default_rng(seed)
    for run in range(runs):
        inside = rng.random(CANARIES) < 0.5
        private = PrivateRounds(privacy, find("FedAvg")(), ff.Client(steps=1), CANARIES, rounds, 1000 * seed + run)
        found.append((inside, sum(_ratio(told(private, t, inside), private) for t in range(rounds))))
    coins, total = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Scores(total[coins], total[~coins])


def told(private: PrivateRounds, t: int, inside: np.ndarray) -> np.ndarray:
    """Return what the server publishes of each canary, in clips: the noised mean times the expected number."""
    like = torch.zeros(CANARIES, dtype=torch.float64)
    mean = private.mean(find("FedAvg")(), Model(like), Context(t=t, lr=0.1, share=private.privacy.rate))
    present = private.cohort(t)
    present = present[inside[present]]
    if len(present):
        ones = torch.ones(len(present), 1, dtype=torch.float64)
        sent = torch.eye(CANARIES, dtype=torch.float64)[present] * LENGTH * private.privacy.clip
        mean.add(find("FedAvg").mean(delta=sent), ones, ones)
    return mean.value().delta.numpy() * private.privacy.rate * CANARIES / private.privacy.clip


def _ratio(x: np.ndarray, private: PrivateRounds) -> np.ndarray:
    """Return the log of the density of `x` with the canary, over that without."""
    q, variance = private.privacy.rate, private.privacy.noise_multiplier**2
    return np.logaddexp(np.log(max(1 - q, 1e-300)), np.log(q) + (x - 0.5) / variance)


def lower_bound(found: Scores, delta: float, confidence: float = 0.95) -> float:
    """Return the epsilon that the mechanism has at least, with this confidence.

    One half of the trials chooses a threshold, and in which direction to guess; the other half is counted.
    """
    choose, count = (Scores(found.inside[i::2], found.outside[i::2]) for i in range(2))
    levels = np.quantile(np.concatenate([choose.inside, choose.outside]), np.linspace(0.0005, 0.9995, 400))
    guesses = [(level, above) for level in levels for above in (True, False)]
    best = max(guesses, key=lambda guess: _bound(choose, *guess, delta, confidence))
    return _bound(count, *best, delta, confidence)


def _bound(found: Scores, level: float, above: bool, delta: float, confidence: float) -> float:
    """Return the bound from P(hit) <= e^epsilon P(false) + delta, with Clopper-Pearson bounds of both probabilities."""
    hits, others = (found.inside > level, found.outside > level) if above else (
        found.outside <= level, found.inside <= level)  # fmt: skip
    error = (1 - confidence) / 2
    least = beta.ppf(error, hits.sum(), (~hits).sum() + 1) if hits.any() else 0.0
    most = beta.ppf(1 - error, others.sum() + 1, (~others).sum()) if not others.all() else 1.0
    return log((least - delta) / most) if least > delta else 0.0

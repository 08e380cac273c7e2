"""A small federation in plain NumPy, for transcriptions of the papers' equations to be held against the package.

Nothing here uses fedflat to compute: gradients are written out by hand, and a transcription is a
function from a `Problem` to the final model, in loops over rounds, clients and steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import nn

import fedflat as ff
from fedflat.core.method import Method
from fedflat.rounds.randomness import seed_torch

Array = np.ndarray


def softmax(z: Array) -> Array:
    """The probabilities of scores, (n, classes)."""
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_error(scores: Array, y: Array) -> Array:
    """Derivative of the mean cross-entropy by the scores, (n, classes)."""
    p = softmax(scores)
    p[np.arange(len(y)), y] -= 1
    return p / len(y)


class Linear:
    """Softmax regression; flat vector = weights (classes x features, row-major), biases."""

    def module(self, features: int, classes: int) -> nn.Module:
        return nn.Linear(features, classes).double()

    def scores(self, w: Array, x: Array, classes: int) -> Array:
        n = classes * x.shape[1]
        return x @ w[:n].reshape(classes, -1).T + w[n:]

    def pull(self, w: Array, x: Array, error: Array) -> tuple[Array, Array]:
        """Derivatives by w and by x, given those by the scores."""
        weights = w[: error.shape[1] * x.shape[1]].reshape(error.shape[1], -1)
        return np.concatenate([(error.T @ x).ravel(), error.sum(axis=0)]), error @ weights


class Tanh:
    """One hidden layer of five tanh units."""

    hidden = 5

    def module(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, self.hidden), nn.Tanh(), nn.Linear(self.hidden, classes)).double()

    def scores(self, w: Array, x: Array, classes: int) -> Array:
        first, bias, second, last = self._cut(w, x.shape[1], classes)
        return np.tanh(x @ first.T + bias) @ second.T + last

    def pull(self, w: Array, x: Array, error: Array) -> tuple[Array, Array]:
        """Derivatives by w and by x, given those by the scores."""
        first, bias, second, _ = self._cut(w, x.shape[1], error.shape[1])
        a = np.tanh(x @ first.T + bias)
        back = (error @ second) * (1 - a**2)
        by_w = [(back.T @ x).ravel(), back.sum(0), (error.T @ a).ravel(), error.sum(0)]
        return np.concatenate(by_w), back @ first

    def _cut(self, w: Array, features: int, classes: int) -> tuple[Array, Array, Array, Array]:
        h = self.hidden
        first, bias, second, last = np.split(w, np.cumsum([h * features, h, classes * h]))
        return first.reshape(h, features), bias, second.reshape(classes, h), last


@dataclass
class Problem:
    """Four clients of uneven size, three of them at most in a round, with decay of weights and of the rate."""

    model: Linear | Tanh = field(default_factory=Linear)
    weights: str = "uniform"
    K: int = 3
    eta: float = 0.2
    decay: float = 0.9
    wd: float = 0.05
    cohorts: tuple[tuple[int, ...], ...] = ((0, 1), (1, 2, 3), (0, 3), (2,), (0, 1, 2), (1, 3))
    seed: int = 3
    uneven: bool = False  # a client takes one step for each of its samples, which are copies of one

    features, classes, sizes = 4, 3, (5, 2, 7, 1)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.data = [
            (rng.normal(i / 3, 1, (n, self.features)), rng.integers(self.classes, size=n))
            for i, n in enumerate(self.sizes)
        ]
        if self.uneven:
            self.data = [(x[[0] * len(x)], y[[0] * len(y)]) for x, y in self.data]
        seed_torch(self.seed)
        self.module = self.model.module(self.features, self.classes)
        self.w0 = nn.utils.parameters_to_vector(self.module.parameters()).detach().numpy().copy()

    @property
    def N(self) -> int:
        return len(self.sizes)

    def lr(self, t: int) -> float:
        return self.eta * self.decay**t

    def steps(self, i: int) -> int:
        """The local steps of client i in a round."""
        return self.sizes[i] if self.uneven else self.K

    def grad(self, i: int, w: Array) -> Array:
        """Full-batch gradient of client i's mean loss."""
        x, y = self.data[i]
        return self.model.pull(w, x, softmax_error(self.scores(w, x), y))[0]

    def scores(self, w: Array, x: Array) -> Array:
        """Class scores, (n, classes)."""
        return self.model.scores(w, x, self.classes)

    def mean(self, cohort: tuple[int, ...], values: list[Array]) -> Array:
        """The weighted mean over a cohort."""
        p = np.array([self.sizes[i] if self.weights == "samples" else 1.0 for i in cohort])
        return sum(a * b for a, b in zip(p / p.sum(), values, strict=True))

    def step(self, w: Array, d: Array, lr: float) -> Array:
        """One local step: decay at the unperturbed iterate."""
        return w - lr * (d + self.wd * w)

    def simulate(self, method: Method, executor: str = "auto", **settings) -> Array:
        """The package's final model on this problem."""
        steps = {"batch_size": 1} if self.uneven else {"steps": self.K, "batch_size": None}
        sim = ff.Simulation(
            model=self.module,
            data=ff.FederatedData.from_clients(self.data, classes=self.classes),
            method=method,
            client=ff.Client(lr=self.eta, lr_decay=self.decay, weight_decay=self.wd, **steps),
            participation=[list(cohort) for cohort in self.cohorts],
            weights=self.weights,
            executor=executor,
            **settings,
        )
        for _ in sim:
            pass
        return sim.w.numpy()


def unit(v: Array) -> Array:
    norm = np.linalg.norm(v)
    return v / norm if norm > 0 else v


def assert_agrees(
    transcription: Callable[[Problem], Array],
    method: Method,
    weights: tuple[str, ...] = ("uniform",),
    uneven: bool = False,
    **settings,
) -> None:
    """The package and a transcription end at the same model on both problems, and training moved it."""
    for model in (Linear(), Tanh()):
        for weighting in weights:
            problem = Problem(model, weighting, uneven=uneven)
            expected, got = transcription(problem), problem.simulate(method, **settings)
            assert np.linalg.norm(expected - problem.w0) > 1e-2
            assert np.abs(got - expected).max() <= 1e-10

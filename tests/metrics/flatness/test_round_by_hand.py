"""Every measure of a round, on a network with uneven clients, against NumPy that shares no code with the package."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import fedflat as ff
from fedflat.methods import FedSAM
from fedflat.metrics.flatness.measures.consistency import Consistency
from fedflat.metrics.flatness.measures.flatness_discrepancy import FlatnessDiscrepancy
from fedflat.metrics.flatness.measures.flatness_incompatibility import FlatnessIncompatibility
from fedflat.metrics.flatness.measures.perturbation_drift import PerturbationDrift
from fedflat.metrics.flatness.measures.tracking_error import TrackingError
from support.problem import Array, Problem, Tanh, unit

RHO = 0.4  # of the method
BALL = 0.3  # of the measures
ROUNDS = 2  # taken before


@dataclass
class ByHand:
    """FedSAM, full batches, on the problem's cohorts."""

    problem: Problem

    def loss(self, i: int, w: Array) -> float:
        x, y = self.problem.data[i]
        scores = self.problem.scores(w, x)
        top = scores.max(axis=1)
        return np.mean(np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - scores[np.arange(len(y)), y])

    def pooled(self, of, w: Array):
        """`of` (a loss or a gradient) of all clients together."""
        return sum(n * of(i, w) for i, n in enumerate(self.problem.sizes)) / sum(self.problem.sizes)

    def path(self, i: int, w: Array, t: int) -> tuple[list[Array], list[Array]]:
        """Local models, the last one after the last step, and unit perturbations."""
        models, perturbations = [w], []
        for _ in range(self.problem.K):
            e = unit(self.problem.grad(i, models[-1]))
            perturbations.append(e)
            d = self.problem.grad(i, models[-1] + RHO * e)
            models.append(self.problem.step(models[-1], d, self.problem.lr(t)))
        return models, perturbations

    def after(self, w: Array, t: int) -> Array:
        return np.mean([self.path(i, w, t)[0][-1] for i in self.problem.cohorts[t]], axis=0)

    def rise(self, i: int, w: Array, d: Array) -> float:
        return self.loss(i, w + BALL * unit(d)) - self.loss(i, w)


def expected() -> dict[str, float]:
    hand = ByHand(Problem(Tanh()))
    p, w = hand.problem, hand.problem.w0
    for t in range(ROUNDS):
        before, w = w, hand.after(w, t)
    h = (before - w) / (p.lr(ROUNDS - 1) * p.K)
    cohort, t = p.cohorts[ROUNDS], ROUNDS
    paths = {i: hand.path(i, w, t) for i in range(p.N)}
    following, g = hand.after(w, t), hand.pooled(p.grad, w)

    rise = hand.pooled(hand.loss, w + BALL * unit(g)) - hand.pooled(hand.loss, w)
    ends = {i: models[-1] for i, (models, _) in paths.items()}
    local = [n * hand.rise(i, ends[i], p.grad(i, ends[i])) for i, n in enumerate(p.sizes)]
    drifts = []
    for k in range(p.K):
        w_k = np.mean([paths[i][0][k] for i in cohort], axis=0)
        drifts += [np.linalg.norm(unit(hand.pooled(p.grad, w_k)) - paths[i][1][k]) / 2 for i in cohort]
    return {
        "flatness_discrepancy": abs(rise - sum(local) / sum(p.sizes)),
        "flatness_incompatibility": np.var([hand.rise(i, w, p.grad(i, w)) for i in range(p.N)]),
        "consistency": np.mean([((ends[i] - following) ** 2).sum() for i in cohort]),
        "tracking_error": ((h - g) ** 2).sum(),
        "tracking_cosine": unit(h) @ unit(g),
        "perturbation_drift": np.mean(drifts),
    }


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_all_measures_of_a_round(executor: str) -> None:
    problem = Problem(Tanh())
    sim = ff.Simulation(
        problem.module,
        ff.FederatedData.from_clients(problem.data, classes=problem.classes),
        FedSAM(rho=RHO),
        ff.Client(lr=problem.eta, lr_decay=problem.decay, steps=problem.K, batch_size=None, weight_decay=problem.wd),
        participation=[list(cohort) for cohort in problem.cohorts],
        executor=executor,
    )
    for _ in range(ROUNDS):
        sim.round()
    measures = [
        FlatnessDiscrepancy(rho=BALL), FlatnessIncompatibility(rho=BALL, direction="method"), Consistency(),
        TrackingError(), PerturbationDrift(steps=0),
    ]  # fmt: skip
    found = {name.partition("(")[0]: x.value for name, x in sim.flatness(measures).items()}
    wanted = expected()
    assert min(map(abs, wanted.values())) > 1e-4
    assert found == pytest.approx(wanted, rel=1e-8)

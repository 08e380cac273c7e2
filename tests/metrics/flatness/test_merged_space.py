"""Flatness over merged weights: the chain rule in closed form on one layer, and what is left as it was."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.adapters import adapted
from fedflat.core.errors import InputError
from fedflat.core.objective import Objective
from fedflat.metrics.flatness import Measure, Subject, all_measures, find, measure
from fedflat.metrics.flatness.measure import LossMeasure
from fedflat.metrics.flatness.measures.density import Density
from fedflat.metrics.flatness.measures.eigenvalues import Eigenvalues
from fedflat.metrics.flatness.measures.gradient_norm import GradientNorm
from fedflat.metrics.flatness.measures.lpf import LPF
from fedflat.metrics.flatness.measures.radius import Radius
from fedflat.metrics.flatness.measures.sharpness import Sharpness
from fedflat.metrics.flatness.measures.trace import Trace
from support.federation import federation
from support.studies import run_spec
from support.transformers import text_folder

SCALE = 6.0 / 2  # alpha / r
RHO = 0.3
QUICK: dict[type[Measure], dict[str, Any]] = {
    Density: {"probes": 2, "steps": 5}, LPF: {"draws": 3}, Radius: {"points": 2, "directions": 2}, Trace: {"most": 20},
}  # fmt: skip
LOSSES = [kind for kind in all_measures().values() if issubclass(kind, LossMeasure)]


class OneLayer:
    """Scores (W + s B A) x of 20 samples, and its losses and derivatives by hand."""

    def __init__(self, stretch: float = 1.0) -> None:
        g = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(20, 4, generator=g).double(), torch.randint(3, (20,), generator=g)
        self.W, A, B = (torch.randn(*shape, generator=g).double() for shape in ((3, 4), (2, 4), (3, 2)))
        self.A, self.B = A * stretch, B / stretch

    @property
    def merged(self) -> Tensor:
        return self.W + SCALE * self.B @ self.A

    def loss(self, W: Tensor) -> float:
        return float((torch.logsumexp(self.x @ W.T, -1) - (self.x @ W.T)[torch.arange(20), self.y]).mean())

    @property
    def G(self) -> Tensor:
        """By the merged weights: (softmax - one-hot)^T x / n."""
        p = torch.softmax(self.x @ self.merged.T, -1)
        return (p - nn.functional.one_hot(self.y, 3)).T @ self.x / 20

    @property
    def H(self) -> np.ndarray:
        """By the merged weights, row-major: the mean of (diag p - p p^T) (x) x x^T."""
        p, x = torch.softmax(self.x @ self.merged.T, -1).numpy(), self.x.numpy()
        return np.mean([np.kron(np.diag(q) - np.outer(q, q), np.outer(v, v)) for q, v in zip(p, x, strict=True)], 0)

    def subject(self) -> Subject:
        layer = nn.Linear(4, 3, bias=False).double()
        layer.weight.data = self.W.clone()
        module = adapted(nn.Sequential(layer), ff.LoRA(targets=("0",), r=2, alpha=6, head="frozen")).double()
        objective = Objective(module)
        data = ff.FederatedData.from_clients([(self.x, self.y)], classes=3)
        return Subject(objective, torch.cat([self.A.reshape(-1), self.B.reshape(-1)]), data)


def value(subject: Subject, one: Measure) -> float:
    (found,) = measure(subject, [one]).values()
    return found.value


def test_the_gradient_is_the_chain_rule_in_both_spaces() -> None:
    """dF/dA = s B^T G and dF/dB = s G A^T, where G is the gradient by the merged weights."""
    one = OneLayer()
    by_A, by_B = SCALE * one.B.T @ one.G, SCALE * one.G @ one.A.T
    assert value(one.subject(), GradientNorm(space="merged")) == pytest.approx(float(one.G.norm()), rel=1e-12)
    expected = float((by_A.norm() ** 2 + by_B.norm() ** 2) ** 0.5)
    assert value(one.subject(), GradientNorm()) == pytest.approx(expected, rel=1e-12)


def test_the_ball_is_around_merged_weights_or_around_factors() -> None:
    one = OneLayer()
    merged = one.loss(one.merged + RHO * one.G / one.G.norm()) - one.loss(one.merged)
    assert value(one.subject(), Sharpness(rho=RHO, space="merged")) == pytest.approx(merged, rel=1e-10)
    by_A, by_B = SCALE * one.B.T @ one.G, SCALE * one.G @ one.A.T
    length = (by_A.norm() ** 2 + by_B.norm() ** 2) ** 0.5
    moved = one.W + SCALE * (one.B + RHO * by_B / length) @ (one.A + RHO * by_A / length)
    trained = one.loss(moved) - one.loss(one.merged)
    assert value(one.subject(), Sharpness(rho=RHO)) == pytest.approx(trained, rel=1e-10)
    assert abs(trained - merged) > 0.1 * merged


def test_the_hessian_is_that_by_merged_weights() -> None:
    one = OneLayer()
    values = np.linalg.eigvalsh(one.H)
    found = value(one.subject(), Eigenvalues(space="merged", tol=1e-9))
    assert found == pytest.approx(values[-1], rel=1e-8)
    [trace] = measure(one.subject(), [Trace(space="merged", relative_error=0.01)]).values()
    assert trace.error is not None
    assert abs(trace.value - np.trace(one.H)) <= 2 * trace.error
    assert trace.error < 0.02 * np.trace(one.H)


def test_stretching_one_factor_against_the_other_is_seen_in_their_space_alone() -> None:
    """A c and B / c are the same function and the same merged weights, but another ball of factors."""
    plain, stretched = OneLayer(), OneLayer(stretch=5.0)
    for kind in (GradientNorm, Sharpness, Eigenvalues):
        merged = [value(one.subject(), kind(space="merged")) for one in (plain, stretched)]
        trained = [value(one.subject(), kind()) for one in (plain, stretched)]
        assert merged[0] == pytest.approx(merged[1], rel=1e-6)
        assert abs(trained[0] - trained[1]) > 0.5 * trained[0]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def run(**changes: Any) -> ff.Simulation:
    settings = {"rounds": 2, "adapter": ff.LoRA(targets=("0", "2"), r=2)}
    sim = ff.Simulation(network(), federation(), ff.methods.FedSAM(), ff.Client(lr=0.2), **settings | changes)
    sim.round()
    return sim


@pytest.mark.parametrize("mode", ["both", "freeze_a", "alternate"])
def test_only_weights_of_adapted_layers_are_moved_and_the_function_is_the_same(mode: str) -> None:
    """7 x 6 and 5 x 7 weights; no bias, and not the head, which is trained, too."""
    sim = run(adapter=ff.LoRA(targets=("0", "2"), r=2, mode=mode))
    subject = Subject(sim.objective, sim.server.w, sim.data)
    assert len(subject.merged.w) == 7 * 6 + 5 * 7
    assert subject.merged.pooled.loss(subject.merged.w) == pytest.approx(subject.pooled.loss(subject.w), rel=1e-12)
    start = ff.Simulation(network(), federation(), ff.methods.FedAvg(), rounds=1).w
    assert (subject.merged.w[: 7 * 6] - start[: 7 * 6]).norm() > 1e-3, "the adapter is in the weights"


def test_measuring_merged_weights_changes_nothing() -> None:
    watched, plain = run(), run()
    watched.flatness([Sharpness(space="merged"), Eigenvalues(space="merged")])
    assert watched.objective.module.training
    watched.round()
    plain.round()
    assert torch.equal(watched.w, plain.w)


@pytest.mark.parametrize("kind", LOSSES)
def test_every_measure_of_the_loss_has_both_spaces_with_its_protocol(kind: type[Measure]) -> None:
    """Factors of 2 x 6 + 7 x 2 and 2 x 7 + 5 x 2 numbers, and a head of 3 x 5 + 3; weights of 7 x 6 and 5 x 7."""
    settings = QUICK.get(kind, {})
    found = run().flatness([kind(**settings), kind(**settings, space="merged")])
    first, second = found.findings
    assert first.protocol.count("; over the 68 trained parameters; all 38 training samples") == 1
    assert "space = merged" in second.protocol
    assert "; over the 77 weights of the adapted layers, adapters merged in; " in second.protocol
    assert all("(space=merged" in name for name in (*second.values, *second.curves))
    assert not set(first.values) & set(second.values)
    assert bool(first.values) == bool(second.values)


def test_of_a_model_without_adapters_nothing_is_said_of_a_space() -> None:
    found = run(adapter=None).flatness(["sharpness"]).findings[0]
    assert re.search(r"; rho = 0.05, steps = 1; all 38 training samples$", found.protocol)
    with pytest.raises(InputError, match=r"^Sharpness\(space='merged', .*\) needs a model with adapters, .*$"):
        run(adapter=None, probes=[Sharpness(space="merged")])
    with pytest.raises(InputError, match=r"^Trace\(space='merged', .*\) needs a model with adapters, .*$"):
        run_spec(flatness=[{"name": "trace", "space": "merged"}]).build()


@pytest.mark.slow
def test_a_transformer_is_merged_inside_its_own_model(tmp_path: Path) -> None:
    """Query and value of two layers of BERT, 16 x 16 each; the loss is the same, and each measure can be taken."""
    tokens = torch.randint(1, 12, (12, 10), generator=torch.Generator().manual_seed(0))
    data = ff.FederatedData.from_clients([(tokens[i : i + 6], torch.arange(6) % 4) for i in (0, 6)], classes=4)
    adapter = ff.LoRA(targets=("query", "value"), r=2)
    options = {"path": str(text_folder(tmp_path / "encoder"))}
    sim = ff.Simulation(
        "transformer", data, ff.methods.FedAvg(), ff.Client(lr=0.5), rounds=1, model_options=options, adapter=adapter
    )
    sim.round()
    subject = Subject(sim.objective, sim.server.w, sim.data)
    assert len(subject.merged.w) == 4 * 16 * 16
    assert subject.merged.pooled.loss(subject.merged.w) == pytest.approx(subject.pooled.loss(subject.w), rel=1e-5)
    found = sim.flatness([Eigenvalues(space="merged"), Sharpness(space="merged"), find("aggregation-error")])
    assert len(found) == 4
    assert all(np.isfinite(x.value) for x in found.values())

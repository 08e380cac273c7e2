"""The mean of products against the product of means: closed forms, invariances, real rounds, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.adapters import adapted
from fedflat.core.errors import InputError
from fedflat.core.objective import Objective
from fedflat.methods import FedAvg, FedSAM, find
from fedflat.metrics.flatness import Subject, measure
from fedflat.metrics.flatness.measures.aggregation_error import AggregationError, _Layer
from fedflat.metrics.flatness.passes import allocated
from fedflat.metrics.flatness.subject import NextRound, RoundObserver
from support.effort import in_turns
from support.federation import federation
from support.studies import run_spec

Clients = list[dict[str, Tensor]]  # of each client A (2, 4) and B (3, 2)


def clients(number: int, seed: int = 0) -> Clients:
    g = torch.Generator().manual_seed(seed)
    return [
        {"A": torch.randn(2, 4, generator=g).double(), "B": torch.randn(3, 2, generator=g).double()}
        for _ in range(number)
    ]


def subject(found: Clients, sizes: tuple[int, ...], at_once: int = 1, **settings: Any) -> Subject:
    """One layer of 4 inputs and 3 outputs, and a round at whose end clients have these factors."""
    module = adapted(nn.Sequential(nn.Linear(4, 3)), ff.LoRA(targets=("0",), r=2)).double()
    data = ff.FederatedData.from_clients([(torch.randn(n, 4), torch.zeros(n).long()) for n in sizes], classes=3)
    objective = Objective(module)
    names = {factor: f"base_model.model.0.lora_{factor}.default.weight" for factor in "AB"}
    w = torch.stack([torch.cat([one[f].reshape(-1) for f in "AB"]) for one in found])
    assert list(objective.space.shapes) == list(names.values())

    def dry_round(_: Any, observer: RoundObserver) -> NextRound:
        order = np.arange(len(found))[::-1]  # in any order
        for some in np.array_split(order, -(-len(order) // at_once)):
            observer.done(some, w[some.copy()])
        return NextRound(order, w.mean(0))

    return Subject(objective, w[0], data, dry_round=dry_round, **settings)


def error(of: Subject) -> float:
    found = measure(of, ["aggregation-error"])
    assert found["aggregation_error_mean"] == found["aggregation_error_largest"], "there is one layer"
    return found["aggregation_error_mean"].value


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(("weights", "first"), [("uniform", 1 / 2), ("samples", 1 / 4)])
def test_of_two_clients_it_is_the_covariance_of_their_factors(weights: Any, first: float, at_once: int) -> None:
    """mean(BA) - mean(B) mean(A) = w1 w2 (B1 - B2)(A1 - A2) for weights that sum to one."""
    one, two = found = clients(2)
    covariance = first * (1 - first) * (one["B"] - two["B"]) @ (one["A"] - two["A"])
    mean = first * one["B"] @ one["A"] + (1 - first) * two["B"] @ two["A"]
    expected = float(covariance.norm() / mean.norm())
    assert error(subject(found, (1, 3), at_once, weights=weights)) == pytest.approx(expected, rel=1e-12)
    assert expected > 0.1


@pytest.mark.parametrize("factor", ["A", "B"])
def test_a_common_factor_leaves_none(factor: str) -> None:
    found = clients(5)
    common = [{**one, factor: found[0][factor]} for one in found]
    assert error(subject(common, (1, 2, 3, 4, 5), 2, weights="samples")) < 1e-14


def test_other_coordinates_inside_the_product_change_nothing() -> None:
    """B R and R^-1 A are the same products and the same product of means, for any R that is common to all."""
    found, R = clients(4), torch.tensor([[2.0, 1.0], [0.5, -3.0]]).double()
    moved = [{"A": torch.linalg.solve(R, one["A"]), "B": one["B"] @ R} for one in found]
    one, other = (error(subject(some, (1, 1, 1, 1), 3)) for some in (found, moved))
    assert one == pytest.approx(other, rel=1e-11)


def test_without_a_mean_product_there_is_no_number() -> None:
    zero = [{**one, "B": torch.zeros(3, 2).double()} for one in clients(2)]
    assert not measure(subject(zero, (1, 1)), ["aggregation-error"])


def test_no_client_has_a_product_of_its_own() -> None:
    """Fifty clients take what the sum and one chunk's sum take, and their factors."""
    A, B, weights = (torch.randn(50, *shape).double() for shape in ((1, 64), (64, 1), ()))
    layer, product = _Layer(None), 8 * 64 * 64  # type: ignore[arg-type]  # names do not matter

    def two_chunks() -> list[Tensor]:
        layer.add(A, B, weights)
        layer.add(A, B, weights)
        return list(layer.sums)

    assert max(allocated(two_chunks)) < 3 * product + 6 * (A.nbytes + B.nbytes) < 50 * product


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def simulation(mode: str, method: str = "FedAvg", targets: tuple[str, ...] = ("0", "2"), **changes: Any):
    client = ff.Client(lr=0.1, epochs=2, batch_size=4, momentum=0.5, weight_decay=0.05)
    settings = {"rounds": 4, "participation": 3, "adapter": ff.LoRA(targets=targets, r=2, mode=mode)}
    return ff.Simulation(network(), federation(), find(method)(), client, **settings | changes)


class Models(RoundObserver):
    """Keeps all local models, and the numbers of samples of their clients."""

    def __init__(self, sim: ff.Simulation) -> None:
        self.sim, self.factors, self.samples = sim, [], []

    def done(self, clients: np.ndarray, w: Tensor) -> None:
        for views in (self.sim.objective.space.views(one) for one in w.clone()):
            self.factors.append({name: x.numpy() for name, x in views.items() if ".lora_" in name})
        self.samples += self.sim.data.sizes_of(clients).tolist()


def transcribed(sim: ff.Simulation) -> dict[str, float]:
    """The definition in NumPy, from all local models at once."""
    models = Models(sim)
    sim.dry_round(None, models)
    share = np.array(models.samples) / sum(models.samples)
    found = {}
    for layer in "02":
        A, B = (np.array([one[f"base_model.model.{layer}.lora_{f}.default.weight"] for one in models.factors])
                for f in "AB")  # fmt: skip
        mean = sum(p * b @ a for p, a, b in zip(share, A, B, strict=True))
        means = np.tensordot(share, B, 1) @ np.tensordot(share, A, 1)
        found[f"aggregation_error/{layer}"] = np.linalg.norm(mean - means) / np.linalg.norm(mean)
    return found


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_real_round_is_its_definition_layer_by_layer(executor: str) -> None:
    sim = simulation("both", weights="samples", executor=executor)
    sim.round()
    expected = transcribed(sim)
    found = {name: x.value for name, x in sim.flatness([AggregationError(layers=True)]).items()}
    assert found.pop("aggregation_error_mean") == pytest.approx(np.mean(list(expected.values())), rel=1e-10)
    assert found.pop("aggregation_error_largest") == pytest.approx(max(expected.values()), rel=1e-10)
    assert found == pytest.approx(expected, rel=1e-10)


BOUNDS = {"freeze_a": (0, 1e-14), "alternate": (0, 1e-14), "both": (1e-4, 1)}  # of the error, by mode


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "method"), in_turns(BOUNDS, ["FedAvg", "FedSAM", "SCAFFOLD"]))
def test_as_a_probe_it_is_zero_where_one_factor_is_common(mode: str, method: str) -> None:
    """In every round, under momentum and weight decay; and the rounds are what they are without the probe."""
    low, high = BOUNDS[mode]
    watched, plain = (simulation(mode, method, probes=probes, probe_every=1) for probes in (["aggregation-error"], []))
    for round_, other in zip(watched, plain, strict=True):
        assert low <= round_.metrics["aggregation_error_mean"] <= round_.metrics["aggregation_error_largest"] <= high
        assert round_.metrics["drift"] == other.metrics["drift"]
    assert torch.equal(watched.w, plain.w)


def test_one_client_alone_loses_nothing() -> None:
    sim = simulation("both", participation=1)
    assert sim.flatness(["aggregation-error"])["aggregation_error_largest"].value < 1e-15


def test_the_protocol_says_which_layers_weights_and_clients() -> None:
    [finding] = simulation("both", weights="samples").flatness(["aggregation-error"]).findings
    assert finding.protocol.endswith("2 layers, samples weights of 3 clients, their own batches")


def test_without_adapters_it_is_refused_before_training() -> None:
    line = r"^AggregationError\(.*\) needs a model with adapters, which this one has not; set adapter, or leave it out$"
    with pytest.raises(InputError, match=line):
        ff.Simulation(network(), federation(), FedAvg(), rounds=1, probes=["aggregation-error"])
    with pytest.raises(InputError, match=line):
        run_spec(flatness=[{"name": "aggregation-error"}]).build()
    sim = ff.Simulation(network(), federation(), FedSAM(), rounds=1)
    with pytest.raises(InputError, match=line):
        sim.flatness(["aggregation-error"])


def test_a_model_alone_has_no_round() -> None:
    with pytest.raises(InputError, match=r"^AggregationError looks at a round of training; measure a run"):
        ff.flatness(adapted(network(), ff.LoRA(targets=("0",))), federation(), ["aggregation-error"])

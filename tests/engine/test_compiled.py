"""A compiled step is the step: for every method, any number of active rows, any form of batch."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.fx.experimental import proxy_tensor

import fedflat as ff
from fedflat.core import stacked_layers
from fedflat.core.method import Method
from fedflat.engine import concatenation, stacked
from fedflat.methods import FedAvg, find
from support.effort import chosen
from support.federation import federation, simulation, tanh_network

pytestmark = pytest.mark.slow

HARD = {"client": {"weight_decay": 0.05, "max_norm": 1.0, "momentum": 0.5}}


def assert_same_losses(one: ff.Simulation, other: ff.Simulation, tolerance: float) -> None:
    """Of training, in every round; they are not taken for constants."""
    expected = [row["train_loss"] for row in one.history]
    assert [row["train_loss"] for row in other.history] == pytest.approx(expected, rel=tolerance)
    assert len(set(expected)) == len(expected)


def trajectory(sim: ff.Simulation) -> torch.Tensor:
    return torch.stack([sim.w.clone() for _ in sim])


@pytest.mark.usefixtures("traced")
def test_every_step_can_be_traced_and_stays_the_same(covering_method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uneven clients, decay, clipping, momentum, falling step sizes: nothing was taken for a constant.

    Every parameter is a part of the gradient by itself, as those of larger models are.
    """
    monkeypatch.setattr(concatenation, "LEAST_WIDTH", 1)
    settings = {"client": HARD["client"] | {"epochs": 1, "batch_size": 1}, "data": federation((2, 4, 1, 3, 1, 3))}
    one, many = (simulation(covering_method, executor=e, rounds=2, **settings) for e in ("sequential", "compiled"))
    expected, found = trajectory(one), trajectory(many)
    assert (expected - found).norm() <= 1e-12 * expected.norm()
    assert many.history[-1]["gradients"] == one.history[-1]["gradients"]
    assert_same_losses(one, many, 1e-7)
    assert many.executor.step.works
    if not covering_method.keeps_head:  # without statistics, their empty vectors have several layouts
        assert len(many.executor.step.forms) == 1, "whatever the number of rows"


PRECISIONS = [(torch.float64, 1e-12), (torch.float32, 1e-6)]


@pytest.mark.parametrize(("dtype", "tolerance"), chosen(PRECISIONS[:1], PRECISIONS))
def test_compiled_is_sequential_after_20_rounds(dtype: torch.dtype, tolerance: float) -> None:
    """By the real compiler, which other tests leave out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
    settings = {"model": model, "rounds": 20, **HARD}
    one, many = (simulation(find("FedSMOO")(), executor=e, **settings) for e in ("sequential", "compiled"))
    expected, found = trajectory(one), trajectory(many)
    assert ((expected - found).norm(dim=1) <= tolerance * expected.norm(dim=1)).all()
    assert_same_losses(one, many, 1e-6)
    assert many.executor.step.works
    assert len(many.executor.step.forms) == 1, "all batches have weights, as some are not full"


@pytest.mark.usefixtures("traced")
def test_a_linear_layer_of_sequences_stays_the_same() -> None:
    """As in attention: the layer acts on the last axis, for every token of every sample; with and without a bias."""
    torch.manual_seed(0)
    layers = [nn.Unflatten(-1, (3, 2)), nn.Linear(2, 4, bias=False), nn.Tanh(), nn.Linear(4, 2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(6, 3)).double()
    one, many = (simulation(find("FedSAM")(), model=model, executor=e) for e in ("sequential", "compiled"))
    expected, found = trajectory(one), trajectory(many)
    assert (expected - found).norm() <= 1e-12 * expected.norm()
    assert many.executor.step.works


@pytest.mark.usefixtures("traced")
def test_a_watched_round_is_seen_and_not_compiled() -> None:
    """A probe of what happens inside a round, in between; nothing else changes."""
    plain = trajectory(simulation(find("FedSAM")(), executor="compiled", rounds=3))
    probed = simulation(find("FedSAM")(), executor="compiled", rounds=3, probes=["perturbation_drift"], probe_every=2)
    assert torch.equal(trajectory(probed), plain)
    assert probed.history[1]["perturbation_drift"] > 0


def test_without_a_compiler_steps_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr(stacked, "compile_graph", missing)
    sim, reference = (simulation(find("FedSAM")(), executor=executor) for executor in ("compiled", "stacked"))
    with caplog.at_level(logging.WARNING):
        assert torch.equal(trajectory(sim), trajectory(reference))
    assert "the local step of FedSAM is not compiled" in caplog.text
    assert "no C++ compiler found" in caplog.text
    assert not sim.executor.step.works
    assert sim.history[-1]["gradients"] == reference.history[-1]["gradients"]


class Branching(FedAvg):
    """Asks for the value of a tensor, as no method should."""

    def step(self, w, client, down, grad, ctx):
        g = grad(w)
        return (g if float(g.norm()) > 0 else w), client


def test_a_step_that_cannot_be_traced_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    runs = [trajectory(simulation(Branching(), executor=executor)) for executor in ("compiled", "stacked")]
    assert torch.equal(*runs)
    assert "the local step of Branching is not compiled" in caplog.text


def test_a_stack_that_fits_one_number_of_clients_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stacked convolution has as many groups as clients: compiling it would take its time, and then fail."""
    monkeypatch.setattr(stacked, "compile_graph", lambda *_: pytest.fail("it was compiled"))
    module = nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    runs = [trajectory(simulation(FedAvg(), model=module, executor=e)) for e in ("compiled", "stacked")]
    assert torch.equal(*runs)
    assert "the local step of FedAvg is not compiled: an operation fixes the number of clients" in caplog.text


def test_a_wrong_compiler_is_noticed(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def wrong(graph: torch.fx.GraphModule, _: object) -> object:
        return lambda *values: [1.01 * x for x in graph(*values)]

    monkeypatch.setattr(stacked, "compile_graph", wrong)
    runs = [trajectory(simulation(find("FedAvg")(), executor=executor)) for executor in ("compiled", "stacked")]
    assert torch.equal(*runs)
    assert "the compiled step gives other numbers" in caplog.text


def test_dropout_is_not_compiled() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).double()
    with pytest.raises(ValueError, match="executor = 'compiled' cannot run a model with dropout"):
        simulation(find("FedAvg")(), model=model, executor="compiled")


def test_single_clients_are_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    sim = simulation(find("FedAvg")(), data=federation(sizes=(5, 3)), participation=1, executor="compiled")
    assert torch.isfinite(trajectory(sim)).all()
    assert not sim.executor.step.forms


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("frozen", [False, True])
def test_trained_linear_layers_have_the_fast_product_and_frozen_ones_torchs(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a functional gradient no weight says that it requires one: all layers had torch's product, half as fast."""
    module, shapes = tanh_network(), []
    module[0].requires_grad_(not frozen)
    product = stacked_layers._Product.apply

    def counted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(weight.shape))
        return product(x, weight)

    monkeypatch.setattr(stacked_layers._Product, "apply", counted)
    sim = simulation(find("FedAvg")(), model=module, executor="compiled", rounds=1)
    sim.round()
    assert sim.executor.step.works
    assert [shape for shape in shapes if len(shape) == 2] == ([(3, 7)] if frozen else [(7, 6), (3, 7)])


@pytest.mark.usefixtures("traced")
def test_an_error_of_the_tracer_is_one_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.8 logs the traceback of such an error, and raises it."""

    def tracer(step: object, **_: object) -> object:
        def trace(*_: object) -> object:
            logging.getLogger("torch._subclasses.fake_tensor").error(
                "failed while attempting to run meta", exc_info=True
            )
            raise RuntimeError("SymIntArrayRef expected to contain only concrete integers")

        return trace

    monkeypatch.setattr(proxy_tensor, "make_fx", tracer)
    sim = simulation(find("FedAvg")(), executor="compiled", rounds=1)
    sim.round()
    assert [line for line in caplog.messages if line] == [
        "the local step of FedAvg is not compiled: SymIntArrayRef expected to contain only concrete integers"
    ]
    assert logging.getLogger("torch._subclasses.fake_tensor").level < logging.CRITICAL

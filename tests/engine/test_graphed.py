"""Replayed steps, where there is a GPU; and that they are refused where there is none."""

from __future__ import annotations

import logging

import pytest
import torch

from fedflat.core.method import Method
from fedflat.engine import prepared
from fedflat.engine.choice import Choice
from fedflat.engine.prepared import TensorStep
from fedflat.methods import find
from support.effort import few_methods, for_few_rounds
from support.federation import simulation

HARD = {"client": {"weight_decay": 0.05, "max_norm": 1.0, "momentum": 0.5}}
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


def final(sim) -> torch.Tensor:
    for _ in sim:
        pass
    return sim.w.cpu()


def use_graphs(sim) -> None:
    """Replace the executor by the graphed one, which is refused without a GPU."""
    executor = sim.executor
    sim._choice = Choice(
        prepared.Graphed(executor.method, executor.objective, executor.batches, sim.seed, executor.randomness), ""
    )


@needs_a_gpu
def test_replayed_is_sequential(covering_method: Method) -> None:
    one = simulation(covering_method, device="cuda", executor="sequential", **HARD)
    many = simulation(covering_method, device="cuda", executor="graphed", **HARD)
    expected, found = final(one), final(many)
    assert (expected - found).norm() <= 1e-12 * expected.norm()
    assert many.history[-1]["gradients"] == one.history[-1]["gradients"]
    assert many.executor.step.works
    assert len(many.executor.step.forms) == 1, "one recording for all batches"


@needs_a_gpu
def test_the_gpu_trains_what_the_processor_trains(covering_method: Method) -> None:
    expected, found = (final(simulation(covering_method, device=device, **HARD)) for device in ("cpu", "cuda"))
    assert (expected - found).norm() <= 1e-10 * expected.norm()


def test_without_a_gpu_it_is_refused() -> None:
    with pytest.raises(ValueError, match="executor = 'graphed' replays CUDA graphs and needs a GPU"):
        simulation(find("FedAvg")(), device="cpu", executor="graphed")


def test_where_no_graph_can_be_recorded_steps_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(prepared.GraphedStep, "prepare", refuse)
    one, many = (simulation(find("FedSAM")(), executor="sequential", **HARD) for _ in range(2))
    use_graphs(many)
    with caplog.at_level(logging.WARNING):
        expected, found = final(one), final(many)
    assert (expected - found).norm() <= 1e-12 * expected.norm()
    [warning] = caplog.messages
    assert warning.startswith("the local step of FedSAM is not recorded as a CUDA graph: operation not permitted")
    assert not many.executor.step.works


@pytest.mark.parametrize("name", few_methods())
def test_padded_batches_of_one_size_are_the_same_rounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it but the recording: steps as functions of tensors, in place of the graph that replays them."""

    class AsItIs(prepared.GraphedStep):
        def prepare(self, step: TensorStep, inputs: object) -> object:
            return lambda values: step(*values)

    monkeypatch.setattr(prepared, "GraphedStep", AsItIs)
    one, many = (simulation(for_few_rounds(find(name)), executor="sequential", **HARD) for _ in range(2))
    use_graphs(many)
    expected, found = final(one), final(many)
    assert (expected - found).norm() <= 1e-12 * expected.norm()
    assert many.history[-1]["gradients"] == one.history[-1]["gradients"]
    assert many.executor.step.works
    assert len(many.executor.step.forms) == 1

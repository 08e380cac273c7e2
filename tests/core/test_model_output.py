from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput, SequenceClassifierOutputWithPast

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.objective import Batch, Objective
from fedflat.core.torch_module import scores_of

SCORES = torch.arange(6.0).reshape(2, 3)


@dataclass
class Output:
    logits: Any


class Wrapped(nn.Module):
    """A linear model whose scores `wrap` puts into something."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.linear, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.linear(x))


WRAPS = {
    "tuple": lambda scores: (scores, scores.mean()),
    "list": lambda scores: [scores],
    "dictionary": lambda scores: {"loss": None, "logits": scores},
    "object": Output,
    "hugging face": lambda scores: SequenceClassifierOutput(logits=scores),
    "hugging face with a loss first": lambda scores: SequenceClassifierOutputWithPast(loss=scores.sum(), logits=scores),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_the_scores_are_found(wrap) -> None:
    assert scores_of(wrap(SCORES)) is SCORES


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_training_is_that_of_the_model_that_returns_a_tensor(wrap, executor: str) -> None:
    rng = np.random.default_rng(0)
    data = ff.FederatedData.from_clients([(rng.normal(size=(6, 4)), np.arange(6) % 3) for _ in range(3)])
    plain = Wrapped(lambda scores: scores)
    wrapped = Wrapped(wrap)
    wrapped.load_state_dict(plain.state_dict())
    one, other = (
        ff.Simulation(model, data, ff.methods.FedSAM(), client=ff.Client(steps=2), rounds=2, executor=executor).run()
        for model in (plain, wrapped)
    )
    assert torch.equal(one.w, other.w)
    assert one.summary["train_loss"] == other.summary["train_loss"]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (None, "returns a value of type NoneType; it has to return a tensor"),
        (3.0, "returns a value of type float"),
        ((), "returns a tuple of nothing"),
        ((None, SCORES), "returns a tuple of NoneType, Tensor"),
        ({"out": SCORES}, "returns a dict with 'out'"),
        ({}, "returns a dict with nothing in it"),
        ({"logits": None}, "returns a dict with 'logits'"),
        ({"\x1b[2J\n": SCORES}, r"returns a dict with '\\x1b\[2J\\n'"),
        (Output(None), "returns a value of type Output"),
        ("x" * 10_000, "returns a value of type str"),
    ],
)
def test_anything_else_is_one_line(output: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        scores_of(output)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


class Recurrent(nn.Module):
    """The last output of a recurrent layer, mapped to scores."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.memory = kind(3, 5, batch_first=True, **options)
        self.out = nn.Linear(5 * (1 + self.memory.bidirectional), 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.memory(x)[0][:, -1])


RECURRENT = [(nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.LSTM, {"num_layers": 2, "bidirectional": True})]


@pytest.mark.parametrize(("kind", "options"), RECURRENT)
def test_gradients_of_recurrent_layers_are_those_of_torch(kind: type[nn.RNNBase], options: dict) -> None:
    torch.manual_seed(0)
    module, elsewhere = Recurrent(kind, **options), Recurrent(kind, **options)
    x, y = torch.randn(6, 7, 3), torch.arange(6) % 4
    objective = Objective(module)
    found = objective.gradient(objective.space.flatten(elsewhere), Batch(x, y))
    loss = nn.functional.cross_entropy(elsewhere(x), y)  # the same parameters as the module's own
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(elsewhere.parameters()))])
    assert torch.allclose(found, expected, atol=1e-7)
    assert found.abs().max() > 1e-3


def recurrent_data() -> ff.FederatedData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 7, 3)).astype(np.float32)
    return ff.FederatedData.split(x, (x.sum((1, 2)) > 0).astype(int), clients=4, classes=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_auto_runs_recurrent_models_one_client_after_another(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    client = ff.Client(lr=0.5, epochs=3, batch_size=5)
    with ff.Simulation(Recurrent(kind), recurrent_data(), ff.methods.FedSAM(), client=client, rounds=12) as sim:
        run = sim.run(flatness=["gradient_norm"])
        assert sim.choice.name == "sequential"
        assert sim.choice.reason.startswith("stacked fails: RuntimeError: Batching rule not implemented")
    assert run.summary["train_loss"] < np.log(2)  # two of the four classes occur, alike: that is not all it has learnt
    assert run.flatness["gradient_norm"].value > 0


def test_an_executor_that_stacks_refuses_recurrent_models_in_one_line() -> None:
    sim = ff.Simulation(
        Recurrent(nn.LSTM), recurrent_data(), ff.methods.FedAvg(), executor="stacked", rounds=1, workers=1
    )
    with pytest.raises(InputError, match="for several clients at once; set executor = 'sequential'") as error:
        sim.run()
    assert "\n" not in str(error.value)

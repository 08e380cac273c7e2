"""Modules with a `train()` of their own: it is called while clients train, and not when they are evaluated."""

from __future__ import annotations

import pickle
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.objective import Objective
from support.effort import chosen, in_test_all
from support.federation import federation


class Plain(nn.Module):
    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.drop, self.b = nn.Linear(6, 8), nn.Dropout(p), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.drop(torch.tanh(self.a(x))))


class Kept(Plain):
    """Its dropout is for no one."""

    def train(self, mode: bool = True) -> Kept:
        super().train(mode)
        self.drop.eval()
        return self


class NeverTrained(nn.Dropout):
    def train(self, mode: bool = True) -> NeverTrained:
        return super().train(False)


class InALayer(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.drop = NeverTrained(0.5)


class IgnoresTheMode(Plain):
    def train(self, mode: bool = True) -> IgnoresTheMode:
        return super().train(False)


def on_the_object(bind: Any) -> nn.Module:
    made = Plain()

    def train(module: nn.Module, mode: bool = True) -> nn.Module:
        nn.Module.train(module, mode)
        module.drop.eval()
        return module

    made.train = bind(train, made)
    return made


def by_hand() -> nn.Module:
    made = Plain()
    made.drop.eval()
    return made


class OwnAttribute(Plain):
    """Keeps the mode in an attribute of its own."""

    active = True

    def train(self, mode: bool = True) -> OwnAttribute:
        self.active = mode
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(nn.functional.dropout(torch.tanh(self.a(x)), 0.5, self.active))


def trained(module: nn.Module, **settings: Any) -> Tensor:
    """The model after two rounds, with an evaluation in between."""
    client = ff.Client(lr=0.1, epochs=2, batch_size=4)
    return ff.Simulation(module, federation(), ff.methods.FedAvg(), client, rounds=2, **settings).run().w


WITHOUT = {
    "in the class": Kept,
    "in a layer": InALayer,
    "ignores the mode": IgnoresTheMode,
    "within another": lambda: nn.Sequential(Kept()),
    "bound method": partial(on_the_object, MethodType),
    "partial": partial(on_the_object, partial),
    "by hand": by_hand,
}


@pytest.mark.parametrize("case", WITHOUT)
@pytest.mark.parametrize("executor", chosen(["stacked"], ["sequential", "stacked", "auto"]))
def test_dropout_that_is_switched_off_trains_as_none(case: str, executor: str) -> None:
    torch.testing.assert_close(trained(WITHOUT[case](), executor=executor), trained(Plain(0.0)), rtol=1e-5, atol=1e-6)


def test_another_process_gets_the_modes() -> None:
    sent = pickle.loads(pickle.dumps(Objective(Kept())))
    assert [layer.training for layer in sent.module.modules()] == [True, True, False, True]


@in_test_all
def test_it_is_so_in_worker_processes(forked_processes: None) -> None:
    one = {"executor": "sequential"}
    assert torch.equal(trained(Kept(), workers=2, **one), trained(Kept(), **one))
    torch.testing.assert_close(trained(Kept(), workers=2, **one), trained(Plain(0.0), **one), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_mode_in_an_attribute_is_back_after_an_evaluation(executor: str) -> None:
    torch.testing.assert_close(trained(OwnAttribute(), executor=executor), trained(Plain(), executor=executor))


class Freezes(Plain):
    def train(self, mode: bool = True) -> Freezes:
        super().train(mode)
        self.a.requires_grad_(False)
        return self


def test_what_train_freezes_is_not_trained() -> None:
    assert set(Objective(Freezes()).space.shapes) == {"b.weight", "b.bias"}


class AlwaysDrops(Plain):
    def train(self, mode: bool = True) -> AlwaysDrops:
        super().train(mode)
        self.drop.train()
        return self


class Merges(nn.Module):
    """As loralib's layers do: a merged weight takes the place of the factors while it is evaluated."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6), requires_grad=False)
        self.A, self.B, self.merged = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.zeros(3, 2)), False

    def train(self, mode: bool = True) -> Merges:
        if mode == self.merged:
            self.weight.data += (1 if self.merged is False else -1) * self.B.data @ self.A.data
            self.merged = not self.merged
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + (0 if self.merged else x @ self.A.T @ self.B.T)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        (on_the_object(lambda train, made: lambda mode=True: train(made, mode)),
         "^model: a copy of it still uses the original through 'train.made', .*$"),
        (on_the_object(lambda train, made: lambda mode=True: None),
         r"^model: train\(\) of the module is a function set on the object, .*$"),
        (AlwaysDrops(), r"^model: drop \(Dropout\) stays in training mode after eval\(\), .*$"),
        (Merges(), r"^model: train\(\) of Merges, or of a layer in it, changes more than the mode: .*$"),
    ],
)  # fmt: skip
def test_a_train_that_would_make_results_wrong_is_one_line(module: nn.Module, line: str) -> None:
    with pytest.raises(InputError, match=line):
        ff.Simulation(module.double(), federation(), ff.methods.FedAvg(), rounds=1)

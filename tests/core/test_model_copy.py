from __future__ import annotations

import threading
from dataclasses import fields

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, prune

from fedflat.core.errors import InputError
from fedflat.core.objective import Objective
from fedflat.core.torch_module import copied
from fedflat.methods import find
from fedflat.rounds.local_training import Client
from support.federation import simulation


class ByLambda(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.head = lambda x: 1 * self.layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


def with_forward_of_an_instance() -> nn.Module:
    layer = nn.Linear(6, 3)
    layer.forward = lambda x, old=layer.forward: old(x) * 1.0
    return layer


def with_a_hook_that_knows_a_layer() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    model[0].register_forward_hook(lambda layer, inputs, output: model[1](output).detach())
    return model


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (ByLambda, "head.self"),
        (with_forward_of_an_instance, "forward.argument 0"),
        (with_a_hook_that_knows_a_layer, "0.hook.model"),
    ],
)
def test_a_model_whose_copy_uses_the_original_is_refused(make, place: str) -> None:
    with pytest.raises(InputError, match=f"still uses the original through '{place}"):
        copied(make())


@pytest.mark.parametrize("make", [nn.DataParallel, lambda model: torch.jit.trace(model, torch.zeros(2, 6))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_wrapper_that_cannot_be_given_other_parameters_is_named(make) -> None:
    with pytest.raises(InputError, match="cannot be trained here; give the module it was made from"):
        copied(make(nn.Linear(6, 3)))


def test_what_cannot_be_copied_is_said_in_one_line() -> None:
    model = nn.Linear(6, 3)
    model.lock = threading.Lock()
    with pytest.raises(InputError, match=r"cannot be copied.*TypeError: cannot pickle '_thread.lock' object\)$"):
        copied(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("change", [nn.utils.weight_norm, lambda layer: prune.l1_unstructured(layer, "weight", 0.5)])
@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_weight_that_a_hook_computes_is_that_of_the_trained_parameters(change, executor: str) -> None:
    """torch can copy no such layer: its weight is the result of a computation."""
    torch.manual_seed(0)
    model = nn.Sequential(change(nn.Linear(6, 4)), nn.Tanh(), nn.Linear(4, 3)).double()
    sim = simulation(find("FedAvg")(), model=model, executor=executor, rounds=1)
    sim.run()
    found, w = sim.model, parameters_to_vector(sim.model.parameters())
    assert torch.equal(w, sim.w)
    assert not torch.equal(w, parameters_to_vector(model.parameters()))
    as_it_is = found[0].weight.detach().clone()
    found(torch.zeros(1, 6, dtype=torch.float64))
    assert torch.equal(found[0].weight, as_it_is)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.layers = nn.ModuleList([self.layer])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def test_a_layer_that_is_registered_twice_is_trained_as_one() -> None:
    """`torch.func.functional_call` leaves the parameters of a pass in it."""
    torch.manual_seed(0)
    model = Twice().double()
    sim, alone = (simulation(find("FedAvg")(), model=m, rounds=2, executor="sequential") for m in (model, model.layer))
    assert torch.equal(sim.run().w, alone.run().w)
    assert torch.equal(sim.model.layers[0].weight.flatten(), sim.w[:18])


class Part(nn.Linear):
    """Its dropout stays off, as in a frozen backbone."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


def test_a_train_of_its_own_is_called_and_other_modes_are_kept() -> None:
    module = nn.Sequential(Part(2, 2), nn.Dropout(0.5).eval(), nn.Linear(2, 2))
    module[0].training = True
    Objective(module)
    assert [layer.training for layer in module] == [False, False, True]


bound = next(field for field in fields(Client) if "bound on the norm" in field.metadata["meaning"])


def pair() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def with_a_hook(hook: str) -> nn.Module:
    model = pair()
    getattr(model[1].weight, hook)(lambda gradient: None)
    return model


def with_a_weight_of(change) -> nn.Module:
    """Its second weight is `change` of the first, by other objects in the same memory."""
    model = pair()
    model[1].weight.data = change(model[0].weight.data)
    return model


def with_a_view_in_a_buffer() -> nn.Module:
    model = pair()
    model[1].register_buffer("average", model[0].weight.detach()[1:])
    return model


def with_a_view_in_an_attribute() -> nn.Module:
    model = pair()
    model[1].first = model[0].weight.data
    return model


def with_an_expanded_weight() -> nn.Module:
    model = pair()
    model[1].weight = nn.Parameter(torch.zeros(1, 3).expand(3, 3))
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: with_a_hook("register_hook"), f"'1.weight' has a hook on its gradient.*client.{bound.name} bounds"),
        (lambda: with_a_hook("register_post_accumulate_grad_hook"), "parameter '1.weight' has a hook on its gradient"),
        (lambda: with_a_weight_of(torch.t), "'[01].weight' and '[01].weight' share memory"),
        (lambda: with_a_weight_of(lambda w: w), "'[01].weight' and '[01].weight' share memory"),
        (lambda: with_a_weight_of(lambda w: w.requires_grad_(False)), "share memory"),
        (with_a_view_in_a_buffer, "'0.weight' and '1.average' share memory"),
        (with_a_view_in_an_attribute, "share memory"),
        (with_an_expanded_weight, "numbers of parameter '1.weight' share memory"),
    ],
)
def test_what_plain_pytorch_does_besides_is_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        copied(make())


def flattened() -> nn.Module:
    """Its parameters are parts of one tensor, one after the other."""
    model = pair()
    nn.utils.vector_to_parameters(torch.randn(24), model.parameters())
    return model


def tied() -> nn.Module:
    model = pair()
    model[1].weight = model[0].weight
    return model


def with_one_mask() -> nn.Module:
    model, mask = pair(), torch.ones(3, 3)
    for layer in model:
        layer.register_buffer("mask", mask)
        layer.also = mask[1:]
    return model


def frozen_in_one_memory() -> nn.Module:
    return with_a_weight_of(lambda w: w).requires_grad_(False)


@pytest.mark.parametrize("make", [flattened, tied, with_one_mask, frozen_in_one_memory, lambda: nn.LSTM(3, 4, 2)])
def test_memory_in_common_that_training_does_not_change_is_taken(make) -> None:
    copied(make())

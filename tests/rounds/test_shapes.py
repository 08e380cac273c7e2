"""What a method knows of the model: the shapes of the parameters that it works on."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import torch
from torch import Tensor

from fedflat.core.errors import InputError
from fedflat.core.method import Method, hyper
from fedflat.core.records import Record
from fedflat.core.wrapper import Wrapper
from fedflat.methods import find
from fedflat.rounds.cost import depends_on_shapes, method_cost
from support.federation import simulation

FedAvg = find("FedAvg")


class PerTensor(Record):
    """A number for each parameter tensor."""

    length: Annotated[Tensor, "tensors"]


class Lengths(FedAvg, client=PerTensor):
    """FedAvg whose clients keep the length of each tensor of their last gradient."""

    def step(self, w: Tensor, client: Any, down: Any, grad: Any, ctx: Any) -> tuple[Tensor, Any]:
        g = grad(w)
        return g, PerTensor(torch.stack([g[..., one].norm(dim=-1) for one in ctx.layers], dim=-1))

    def check_model(self) -> None:
        if len(self.shapes) < 2:
            raise InputError("Lengths needs a model of at least two tensors")


SHAPES = ((7, 6), (7,), (3, 7), (3,))  # of the network of `simulation`


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("settings", "shapes"),
    [({}, SHAPES), ({"keep": ["2"]}, SHAPES[:2]), ({"keep": ["0.bias"]}, SHAPES[:1] + SHAPES[2:])],
)
def test_a_method_knows_the_shapes_of_what_it_works_on(executor: str, settings: dict, shapes: Any) -> None:
    sim = simulation(Lengths(), executor=executor, rounds=2, **settings)
    for _ in sim:
        pass
    method = sim.executor.method
    assert method.shapes == shapes
    assert method.client.widths(1, method)["length"] == len(shapes)
    assert torch.isfinite(sim.w).all()


def test_the_base_of_a_wrapper_knows_them() -> None:
    class Around(Wrapper):
        """It changes nothing."""

        base: Method = hyper(FedAvg(), "the method inside")

    around = Around(base=Lengths())
    assert around.on_model(SHAPES).base.shapes == around.on_model(SHAPES).shapes == SHAPES
    assert around.shapes == (), "the method itself is unchanged"
    assert around.on_model(SHAPES) == around, "shapes are no setting"


def test_a_model_that_does_not_suit_a_method_is_refused() -> None:
    with pytest.raises(InputError, match="at least two tensors"):
        simulation(Lengths(), keep=["0", "2.bias"])


def test_a_cost_that_depends_on_shapes_is_that_of_the_model() -> None:
    assert depends_on_shapes(Lengths())
    assert not depends_on_shapes(FedAvg())
    assert method_cost(Lengths().on_model(SHAPES), 100).client == len(SHAPES)

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedflat.core.descent import Descent, DirectionParts
from fedflat.core.local import local_round, lr_factors_of
from fedflat.core.method import Context
from fedflat.core.records import Model, Nothing
from fedflat.methods import find


def test_descent_is_torchs_sgd() -> None:
    """Weight decay and momentum as torch.optim.SGD has them, after clipping by the global norm."""
    torch.manual_seed(0)
    target = torch.randn(6, dtype=torch.float64)
    parameter = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    optimiser = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.05)
    w, descent = parameter.detach().clone(), Descent(0.1, weight_decay=0.05, max_norm=1.5, momentum=0.9)
    state = descent.start(w)
    for _ in range(5):
        optimiser.zero_grad()
        (0.5 * (parameter - target).square().sum()).backward()
        gradient = parameter.grad.clone()
        parameter.grad *= min(1.0, 1.5 / float(gradient.norm()))
        optimiser.step()
        w, state = descent(w, gradient, state, DirectionParts())
    torch.testing.assert_close(w, parameter.detach(), rtol=0, atol=1e-13)


def test_clipping_leaves_short_directions_alone_and_bounds_long_ones_per_client() -> None:
    d = torch.tensor([[0.3, 0.4], [30.0, 40.0], [0.0, 0.0]], dtype=torch.float64)
    moved, _ = Descent(1.0, max_norm=1.0)(torch.zeros(3, 2).double(), d, None, DirectionParts())
    torch.testing.assert_close(
        -moved, torch.tensor([[0.3, 0.4], [0.6, 0.8], [0.0, 0.0]], dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_momentum_starts_anew_every_round() -> None:
    method, down = find("FedAvg")(), Model(torch.zeros(2).double())
    steps = [(lambda w: w - 1, 1)] * 3
    rounds = [
        local_round(method, down, Nothing(), steps, Context(0, 0.1, 1.0), Descent(0.1, momentum=0.9)) for _ in "ab"
    ]
    assert torch.equal(rounds[0].w, rounds[1].w)


@pytest.mark.parametrize("lead", [(), (1,)])
def test_steps_and_rates_are_counted(lead: tuple[int, ...]) -> None:
    seen = []

    class Spy(find("FedAvg")):
        """client  -  server  -"""

        def step(self, w, client, down, grad, ctx):
            seen.append((ctx.steps, ctx.lr_sum))
            return super().step(w, client, down, grad, ctx)

        def finish(self, w, client, down, ctx):
            seen.append((ctx.steps.flatten().tolist(), ctx.lr_sum.flatten().tolist()))
            return super().finish(w, client, down, ctx)

    down = Model(torch.zeros(*lead, 2).double())
    local_round(Spy(), down, Nothing(), [(lambda w: w, 1)] * 3, Context(0, 0.5, 1.0), Descent(0.5))
    assert seen == [(0, 0.0), (1, 0.5), (2, 1.0), ([3.0], [1.5])]


class Halving(find("FedAvg")):
    """client  every step is half as long as the one before  -  server  -"""

    def lr_factor(self, ctx):
        return 0.5 ** (ctx.steps + 0 * ctx.local_steps)


def test_a_schedule_changes_the_steps_and_their_sum() -> None:
    """The gradient is 1, so a client moves by the sum of its step sizes: lr (2 - 2^(1 - K))."""
    down = Model(torch.zeros(3, 2).double())
    steps = [(torch.ones_like, 3), (torch.ones_like, 2), (torch.ones_like, 2), (torch.ones_like, 1)]
    ctx = Context(0, 0.5, 1.0, local_steps=torch.tensor([[4.0], [3.0], [1.0]]).double())
    result = local_round(Halving(), down, Nothing(), steps, ctx, Descent(0.5))
    assert result.lr_factors.flatten().tolist() == [1.875, 1.75, 1.0]
    assert torch.equal(result.w, (-0.5 * result.lr_factors).expand(-1, 2))
    assert torch.equal(result.up.delta, result.w)


def test_without_a_schedule_the_sum_of_the_factors_is_the_number_of_steps() -> None:
    down = Model(torch.zeros(2, 2))
    steps = [(torch.ones_like, 2), (torch.ones_like, 1)]
    result = local_round(find("FedAvg")(), down, Nothing(), steps, Context(0, 0.5, 1.0), Descent(0.5))
    assert torch.equal(result.lr_factors, result.steps)
    method, ctx = find("FedAvg")(), Context(0, 0.5, 1.0)
    assert torch.equal(lr_factors_of(method, ctx, result.steps[:1]), result.steps[:1])


def test_clients_that_are_done_cost_nothing_and_keep_their_place() -> None:
    """The oracle is never asked about rows beyond the active ones; each step halves a model."""
    rows = []
    oracle = lambda w: rows.append(len(w)) or w  # noqa: E731
    down = Model(torch.ones(4, 2).double())
    steps = [(oracle, 4), (oracle, 2), (oracle, 1)]
    result = local_round(find("FedAvg")(), down, Nothing(), steps, Context(0, 0.5, 1.0), Descent(0.5))
    assert rows == [4, 2, 1]
    assert result.steps.flatten().tolist() == [3, 2, 1, 1]
    assert result.w.tolist() == [[0.125] * 2, [0.25] * 2, [0.5] * 2, [0.5] * 2]


@pytest.mark.parametrize(("scope", "share"), [("outside", 1.0), ("inside", 0.25)])
def test_weight_decay_inside_is_mixed_like_the_gradient(scope: str, share: float) -> None:
    """In d = 0.25 gradient + the rest, it is added to the gradient, and outside to d."""
    w, d = torch.tensor([2.0, -4.0]).double(), torch.tensor([1.0, 1.0]).double()
    after, _ = Descent(0.5, weight_decay=0.1, wd_scope=scope)(w, d, None, DirectionParts(fresh=0.25))
    torch.testing.assert_close(after, w - 0.5 * (d + share * 0.1 * w), rtol=0, atol=1e-15)


def test_a_bound_on_gradients_measures_what_moves() -> None:
    """Of (3, 4, 12) the first two move: their norm is 5, so all coordinates are divided by 5."""
    g, moving = torch.tensor([[3.0, 4.0, 12.0]]), torch.tensor([True, True, False])
    bound = Descent(0.5, max_norm=1.0, clip_scope="gradient").bound_on_gradients(moving)
    torch.testing.assert_close(bound(g), g / 5)
    assert Descent(0.5, max_norm=1.0).bound_on_gradients(moving) is None
    assert Descent(0.5, clip_scope="gradient").bound_on_gradients(moving) is None

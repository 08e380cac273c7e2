from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from fedflat.core.model_check import Randomness, randomness_of


class Functional(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


class Noisy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + torch.rand(x.shape))


class Attention(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)[:, None]
        return functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)[:, 0]


class OneWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("A gradient was refused")


class NoWayBack(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return OneWay.apply(super().forward(x))


class Recomputing(nn.Sequential):
    """Activation checkpointing: `functional_call` is over when the layers run again, so they see other parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


class Counting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Failing(nn.Linear):
    def __init__(self, error: Exception) -> None:
        super().__init__(4, 3)
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error


class Returning(nn.Linear):
    def __init__(self, change) -> None:
        super().__init__(4, 3)
        self.change = change

    def forward(self, x: torch.Tensor):
        return self.change(super().forward(x))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(4, 3), Randomness.NOTHING),
        (nn.Linear(4, 3).requires_grad_(False), Randomness.NOTHING),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), Randomness.DROPOUT),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5).eval()), Randomness.NOTHING),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), Randomness.NOTHING),
        (nn.Sequential(nn.RReLU(), nn.Linear(4, 3)), Randomness.OTHER),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.AlphaDropout(0.5)), Randomness.OTHER),
        (Functional(4, 3), Randomness.DROPOUT),
        (Noisy(4, 3), Randomness.OTHER),
        (Attention(4, 3), Randomness.OTHER),
    ],
)
def test_random_numbers_are_seen_wherever_they_are_drawn(module: nn.Module, expected: Randomness) -> None:
    state = torch.get_rng_state()
    assert randomness_of(module, -torch.ones(2, 4), 3) is expected
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize(
    ("module", "x", "message"),
    [
        (Counting(4, 3), torch.zeros(2, 4), "buffer 'calls' changes in training"),
        (
            nn.Linear(5, 3),
            torch.zeros(2, 4),
            r"cannot take samples of shape \(4,\) and type torch.float32: mat1 and mat2",
        ),
        (
            nn.Linear(4, 3),
            torch.zeros(2, 4, dtype=torch.int64),
            r"cannot take samples of shape \(4,\) and type torch.int64",
        ),
        (
            Recomputing(nn.Linear(4, 3), nn.Tanh()),
            torch.zeros(2, 4),
            r"a Linear is computed again for the gradient \(activation checkpointing\)",
        ),
        (NoWayBack(4, 3), torch.zeros(2, 4), "has no gradient: A gradient was refused"),
        (
            Failing(AttributeError("'list' object has no attribute 'x'")),
            torch.zeros(2, 4),
            "AttributeError: 'list' obj",
        ),
        (Failing(KeyError("ids")), torch.zeros(2, 4), "cannot take samples .*: KeyError: 'ids'"),
        (Failing(AssertionError()), torch.zeros(2, 4), "cannot take samples .*: AssertionError"),
        (Returning(lambda scores: {"out": scores}), torch.zeros(2, 4), "returns a dict with 'out'"),
        (nn.Linear(4, 2), torch.zeros(2, 4), r"gives scores of shape \(2, 2\) for 2 samples of 3 classes"),
    ],
)
def test_what_cannot_work_is_said_before_the_first_round(module: nn.Module, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        randomness_of(module, x, 3)


def test_probabilities_in_the_place_of_scores_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="as after a softmax; cross-entropy takes the softmax itself"):
        randomness_of(Returning(lambda scores: scores.softmax(-1)), torch.randn(2, 4), 3)


@pytest.mark.parametrize("change", [torch.sigmoid, torch.relu, lambda x: x.log_softmax(-1), lambda x: x])
def test_other_scores_are_not(change) -> None:  # a warning is an error in these tests
    randomness_of(Returning(change), torch.randn(2, 4), 3)
    randomness_of(nn.Sequential(nn.Linear(4, 1), nn.Softmax(-1)), torch.randn(2, 4), 1)  # one class: nothing to learn

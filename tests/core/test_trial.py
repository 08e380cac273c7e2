from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedflat.core.trial import is_random


class Functional(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


class Counting(nn.Linear):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(4, 3), False),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), True),
        (nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5).eval()), False),
        (nn.Sequential(nn.RReLU(), nn.Linear(4, 3)), True),
        (Functional(4, 3), True),
    ],
)
def test_random_numbers_are_seen_wherever_they_are_drawn(module: nn.Module, expected: bool) -> None:
    state = torch.get_rng_state()
    assert is_random(module, -torch.ones(2, 4), 3) is expected
    assert torch.equal(torch.get_rng_state(), state)


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
        (nn.Linear(4, 2), torch.zeros(2, 4), r"gives scores of shape \(2, 2\) for 2 samples of 3 classes"),
    ],
)
def test_what_cannot_work_is_said_before_the_first_round(module: nn.Module, x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        is_random(module, x, 3)

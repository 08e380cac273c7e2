"""Options of an embedding that change its gradient, for many clients at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fedflat.core.errors import StackingError
from fedflat.core.objective import Batch, Objective


def gradients(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of three clients in a stack, and of each alone."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 4, **options), nn.Flatten(), nn.Linear(12, 2)).double()
    objective = Objective(module)
    x, y = torch.randint(5, (3, 6, 3)), torch.randint(2, (3, 6))
    w = torch.randn(3, objective.space.d).double()
    alone = torch.stack([objective.gradient(w[i], Batch(x[i], y[i])) for i in range(3)])
    return objective.gradient(w, Batch(x, y)), alone


@pytest.mark.parametrize("padding", [None, 2, -1])
def test_a_stack_has_the_gradients_of_each_client_alone(padding: int | None) -> None:
    stacked, alone = gradients(padding_idx=padding)
    torch.testing.assert_close(stacked, alone, rtol=1e-12, atol=1e-14)
    row = stacked[:, : 5 * 4].view(3, 5, 4)[:, padding or 0]
    assert bool(row.any()) == (padding is None)


def test_a_gradient_that_counts_tokens_is_refused_for_a_stack() -> None:
    with pytest.raises(StackingError, match=r"^model: an embedding with scale_grad_by_freq cannot be run for several"):
        gradients(scale_grad_by_freq=True)

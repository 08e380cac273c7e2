"""Options of an embedding that change its gradient, for many clients at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fedflat as ff
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


@pytest.mark.parametrize("executor", ["stacked", "compiled", "auto"])
def test_every_executor_leaves_the_padding_as_it_is(traced: None, executor: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(5, 4, padding_idx=2), nn.Flatten(), nn.Linear(12, 2)).double()
    clients = [(torch.randint(5, (n, 3)), torch.arange(n) % 2) for n in (6, 3)]
    data, client = ff.FederatedData.from_clients(clients), ff.Client(lr=0.5, epochs=2, batch_size=2)
    found, expected = (
        ff.Simulation(module, data, ff.methods.FedSAM(), client, rounds=2, executor=one).run().w
        for one in (executor, "sequential")
    )
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_a_gradient_that_counts_tokens_is_refused_for_a_stack() -> None:
    with pytest.raises(StackingError, match=r"^model: an embedding with scale_grad_by_freq cannot be run for several"):
        gradients(scale_grad_by_freq=True)

from __future__ import annotations

import pytest
import torch

from benchmarks.vectors import GRADIENT, LR, STEPS, client_round
from fedflat.methods import FedAvg, FedSAM, all_methods


@pytest.mark.parametrize("method", [FedAvg(), FedSAM()])
def test_gradients_are_free_and_the_rest_is_done(method) -> None:
    """A gradient that is the same everywhere leads both methods down the same straight line."""
    w = torch.linspace(-1, 1, 12)
    result = client_round(method, w, ((3, 4),))()
    torch.testing.assert_close(result.w, w - STEPS * LR * GRADIENT)


@pytest.mark.parametrize("name", all_methods())
def test_every_method_goes_through_a_round(name: str) -> None:
    method = all_methods()[name]().fitted((3, 2, 2))
    w = torch.linspace(-1, 1, 12)
    result = client_round(method, w, ((2, 3), (6,)))()
    assert result.w.shape == (12,)
    assert torch.isfinite(result.w).all()
    assert int(result.steps) == STEPS

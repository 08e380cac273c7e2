"""The part of a message that the server computes by itself is what a client sends that has nothing to add."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedflat.core.descent import Descent
from fedflat.core.local import local_round
from fedflat.core.method import Context
from fedflat.methods import find


@pytest.mark.parametrize("name", ["FedCM", "MoFedSAM", "FedFSA", "FedAdamW", "FedMuon"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_client_without_gradients_sends_the_public_part(name: str, steps: int) -> None:
    method, w = find(name)().on_model(((2, 2), (2,))), torch.linspace(-1, 1, 6, dtype=torch.float64)
    down = method.broadcast(replace(method.init_server(w), direction=w.cos())).map(lambda x: x[None])
    ctx = Context(t=2, lr=0.1, share=0.5, local_steps=float(steps), layers=(slice(0, 4), slice(4, 6)))
    flat = [(torch.zeros_like, 1)] * steps
    result = local_round(method, down, method.init_client(down), flat, ctx, Descent(0.1))
    ended = replace(ctx, steps=result.steps, lr_sum=0.1 * result.lr_factors)
    torch.testing.assert_close(result.up.delta, method.public(down, ended).delta, rtol=0, atol=1e-15)
    assert result.up.delta.abs().max() > 0.01

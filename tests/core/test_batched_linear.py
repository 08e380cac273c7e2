"""Stacked linear layers: the same numbers, gradients in the order of the flat vector, and a module left as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from fedflat.core.stacked_layers import linear_layers, row_major


def test_gradients_are_those_of_the_layer_and_row_major() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3).double()
    weight, bias = torch.randn(5, 3, 4, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    x = torch.randn(5, 6, 4, dtype=torch.float64)
    weight.requires_grad_()

    def scores(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return functional_call(layer, {"weight": w, "bias": b}, (x,))

    with row_major(linear_layers(layer)):
        found = vmap(scores)(weight, bias, x)
    expected = torch.einsum("cbi,coi->cbo", x, weight) + bias[:, None]
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    cotangent = torch.randn_like(found)
    gradient = torch.autograd.grad(found, weight, cotangent)[0]
    torch.testing.assert_close(gradient, torch.einsum("cbo,cbi->coi", cotangent, x), rtol=1e-12, atol=1e-12)
    assert gradient.is_contiguous()


def test_the_module_is_left_as_it_was_even_after_an_error() -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="shapes"), row_major(linear_layers(layer)):
        layer(torch.zeros(3, 5))
    assert "forward" not in vars(layer)


def test_a_forward_of_ones_own_stays() -> None:
    own, plain = nn.Linear(2, 2), nn.Linear(2, 2)
    own.forward = torch.zeros_like  # type: ignore[method-assign]
    assert linear_layers(nn.Sequential(own, plain)) == [plain]

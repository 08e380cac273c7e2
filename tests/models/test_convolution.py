"""A convolution without the taps that meet only padding is the same convolution."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fedflat.models.blocks.resnet import Convolution


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 3), (3, 2), (4, 4), (9, 8)])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (3, 2, 1), (1, 2, 0), (7, 2, 3), (5, 3, 4)])
def test_output_and_gradients_are_those_of_the_whole_kernel(
    size: tuple[int, int], kernel: int, stride: int, padding: int
) -> None:
    torch.manual_seed(0)
    layer = Convolution(2, 3, kernel, stride, padding).double()
    x = torch.randn(4, 2, *size, dtype=torch.float64, requires_grad=True)
    found, expected = layer(x), functional.conv2d(x, layer.weight, None, stride, padding)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    cotangent = torch.randn_like(expected)
    for one, other in zip(
        *(torch.autograd.grad(y, (x, layer.weight), cotangent) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "taps"),
    [(1, 3, 1, 1, (1, 2)), (2, 3, 2, 1, (1, 3)), (2, 3, 1, 1, (0, 3)), (32, 7, 2, 3, (0, 7)), (1, 7, 2, 3, (3, 4))],
)
def test_taps_that_meet_the_map(size: int, kernel: int, stride: int, padding: int, taps: tuple[int, int]) -> None:
    """On 1x1 with padding 1 only the middle of three; by hand."""
    assert Convolution(1, 1, kernel, stride, padding)._taps(0, size) == taps

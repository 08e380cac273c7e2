"""Convolutions on small maps."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Convolution(nn.Conv2d):
    """A convolution that skips the taps of its kernel that only meet padding.

    On a map of 1x1, as in the last blocks of a ResNet on 32x32 images, these are eight of nine. The output and all
    gradients are the same without them, for a ninth of the work and of the weights that are read.
    """

    def __init__(self, inside: int, outside: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        """A square kernel, without a bias."""
        super().__init__(inside, outside, kernel, stride, padding, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, inputs, height, width) to (b, outputs, ...)."""
        taps = [self._taps(axis, x.shape[2 + axis]) for axis in (0, 1)]
        weight = self.weight[:, :, slice(*taps[0]), slice(*taps[1])]
        padding = [int(self.padding[axis]) - taps[axis][0] for axis in (0, 1)]
        return functional.conv2d(x, weight, self.bias, self.stride, padding)

    def _taps(self, axis: int, size: int) -> tuple[int, int]:
        """The first tap along `axis` that meets a map of `size`, and the tap after the last one."""
        kernel, stride, padding = self.kernel_size[axis], self.stride[axis], int(self.padding[axis])
        outputs = (size + 2 * padding - kernel) // stride + 1
        first, last = max(0, padding - (outputs - 1) * stride), min(kernel, padding + size)
        same = (size + 2 * (padding - first) - (last - first)) // stride + 1 == outputs
        return (first, last) if same else (0, kernel)

"""Residual networks: convolutions, the basic block, the four stages, the normalisation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...core.errors import InputError

Norm = Callable[[int], nn.Module]  # number of channels -> normalisation


class Convolution(nn.Conv2d):
    """A convolution that skips the kernel elements (taps) that are only applied to padding.

    On a map of 1x1, as in the last blocks of a ResNet on 32x32 images, these are eight of the nine taps. The output and
    all gradients are the same without them, for a ninth of the work and of the weights that are read.
    """

    def __init__(self, inside: int, outside: int, kernel: int, stride: int = 1, padding: int = 0) -> None:
        """Make a convolution with a square kernel, without a bias."""
        super().__init__(inside, outside, kernel, stride, padding, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (b, inputs, height, width) to (b, outputs, ...)."""
        taps = [self._taps(axis, int(x.shape[2 + axis])) for axis in (0, 1)]  # in a trace sizes are tensors
        weight = self.weight[:, :, slice(*taps[0]), slice(*taps[1])]
        padding = [int(self.padding[axis]) - taps[axis][0] for axis in (0, 1)]
        return functional.conv2d(x, weight, self.bias, self.stride, padding)

    def _taps(self, axis: int, size: int) -> tuple[int, int]:
        """Return the first tap along `axis` that meets a map of `size`, and the tap after the last one."""
        kernel, stride, padding = self.kernel_size[axis], self.stride[axis], int(self.padding[axis])
        outputs = (size + 2 * padding - kernel) // stride + 1
        first, last = max(0, padding - (outputs - 1) * stride), min(kernel, padding + size)
        same = (size + 2 * (padding - first) - (last - first)) // stride + 1 == outputs
        return (first, last) if same else (0, kernel)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = Convolution(inside, outside, 3, stride, 1)
        self.norm1 = norm(outside)
        self.conv2 = Convolution(outside, outside, 3, 1, 1)
        self.norm2 = norm(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(Convolution(inside, outside, 1, stride), norm(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def resnet18(stem: nn.Module, norm: Norm, classes: int) -> nn.Module:
    """Build a ResNet-18: `stem` to 64 channels, four stages of 64 to 512 channels, the mean, and a linear layer."""
    stages: list[nn.Module] = []
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        stages += [BasicBlock(inside, outside, stride, norm), BasicBlock(outside, outside, 1, norm)]
        inside = outside
    return nn.Sequential(stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))


def two_groups(channels: int) -> nn.Module:
    """Build group normalisation with 2 groups, as in the released code."""
    return nn.GroupNorm(2, channels)


def check_image(name: str, shape: tuple[int, ...], least: int = 8) -> None:
    """Raise InputError unless `shape` is that of an image of at least `least` x `least` pixels."""
    if len(shape) != 3 or min(shape[1:]) < least:
        raise InputError(
            f"model {name!r} takes images (channels, height, width) of at least {least}x{least}, got {shape}"
        )

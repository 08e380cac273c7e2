"""WideResNet-28-4 with group normalisation: FedVSSAM's network for CIFAR-100; the paper does not name the norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .blocks.resnet import check_image, two_groups


class PreActivation(nn.Module):
    """Normalisation, activation and convolution, twice; the shortcut is a 1x1 convolution if the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.norm1 = two_groups(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm2 = two_groups(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.changes = stride != 1 or inside != outside
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False) if self.changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.norm1(x))
        y = self.conv2(torch.relu(self.norm2(self.conv1(a))))
        result: Tensor = y + self.shortcut(a if self.changes else x)
        return result


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Build three groups of four blocks with 64, 128 and 256 channels, after a stem of 16 channels."""
    check_image("wrn28-4-gn", shape)
    blocks: list[nn.Module] = []
    inside = 16
    for outside, stride in ((64, 1), (128, 2), (256, 2)):
        for k in range(4):
            blocks.append(PreActivation(inside if k == 0 else outside, outside, stride if k == 0 else 1))
        inside = outside
    head = (two_groups(256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))
    return nn.Sequential(nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False), *blocks, *head)

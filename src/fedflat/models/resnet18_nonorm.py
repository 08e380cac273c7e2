"""ResNet-18 with all normalisations removed and a 3x3 stem: FedGF's network of Table 9."""

from __future__ import annotations

from torch import nn

from .blocks.resnet import check_image, resnet18


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Build the network with a 3x3 stem of stride 1, without max-pooling; its convolutions have no bias.

    It has 11,210,532 parameters with 100 classes.
    """
    check_image("resnet18-nonorm", shape)
    stem = nn.Sequential(nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.ReLU())
    return resnet18(stem, lambda channels: nn.Identity(), classes)

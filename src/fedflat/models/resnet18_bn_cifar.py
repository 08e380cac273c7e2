"""ResNet-18 with batch normalisation and a 3x3 stem, the usual form for CIFAR images."""

from __future__ import annotations

from torch import nn

from .blocks.resnet import check_image, resnet18


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Build the network with a 3x3 stem of stride 1, without max-pooling: 11,173,962 parameters with 10 classes.

    Its running statistics need the setting `buffers` of a run.
    """
    check_image("resnet18-bn-cifar", shape)
    stem = nn.Sequential(nn.Conv2d(shape[0], 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return resnet18(stem, nn.BatchNorm2d, classes)

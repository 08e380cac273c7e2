"""ResNet-18 with group normalisation and the ImageNet stem, also on 32x32 images: FedSMOO's and FedLESAM's network."""

from __future__ import annotations

from torch import nn

from .blocks.resnet import check_image, resnet18, two_groups


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Build torchvision's layout with a 7x7 stem of stride 2 and max-pooling: 11,181,642 parameters with 10 classes."""
    check_image("resnet18-gn", shape)
    stem = nn.Sequential(
        nn.Conv2d(shape[0], 64, 7, 2, 3, bias=False), two_groups(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
    )
    return resnet18(stem, two_groups, classes)

"""A small fully convolutional network of dilated convolutions (Yu and Koltun, 2016), which scores each pixel."""

from __future__ import annotations

from torch import nn

from ..core.errors import InputError

DILATIONS = (1, 2, 4, 8, 1)  # so that a score depends on a square of 33 pixels
GROUPS = 4


def build(classes: int, shape: tuple[int, ...], width: int = 16) -> nn.Module:
    """Build 3x3 convolutions of `width` channels with GroupNorm and ReLU, and a 1x1 convolution, without strides."""
    if len(shape) != 3:
        raise InputError(f"model 'dilated-cnn' takes pictures (channels, height, width), got shape {shape}")
    if width < 1 or width % GROUPS:
        raise InputError(f"model option width = {width} must be a positive multiple of {GROUPS}")
    layers: list[nn.Module] = []
    for place, dilation in enumerate(DILATIONS):
        convolution = nn.Conv2d(width if place else shape[0], width, 3, padding=dilation, dilation=dilation)
        layers += [convolution, nn.GroupNorm(GROUPS, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, classes, 1))

"""LeNet-5 (LeCun et al., 1998) for 32x32 images: 62,006 parameters with 3 channels and 10 classes."""

from __future__ import annotations

from torch import nn

from .lenet import lenet_layers


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Build two 5x5 convolutions of 6 and 16 channels without padding, max-pooled, then 120 and 84 hidden units."""
    return lenet_layers("lenet5", classes, shape, (6, 16), (120, 84))

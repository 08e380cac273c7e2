"""LeNet-5 (LeCun et al., 1998) for 32x32 images: 62,006 parameters with 3 channels and 10 classes."""

from __future__ import annotations

from torch import nn

from ..core.errors import InputError


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Two 5x5 convolutions of 6 and 16 channels without padding, max-pooled, then 120 and 84 units."""
    if len(shape) != 3 or shape[1:] != (32, 32):
        raise InputError(f"model 'lenet5' takes images (channels, 32, 32), got shape {shape}; try 'cnn'")
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),  # after the maximum: the same result for a quarter of the work
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )

"""The LeNet of FedGF, Caldarola et al. and FedGloSS for 3x32x32 images: 797,962 parameters with 10 classes."""

from __future__ import annotations

from torch import nn

from ..core.errors import InputError


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Two 5x5 convolutions of 64 channels without padding, max-pooled, then 384 and 192 units."""
    if len(shape) != 3 or shape[1:] != (32, 32):
        raise InputError(f"model 'lenet' takes images (channels, 32, 32), got shape {shape}; try 'cnn'")
    return nn.Sequential(
        nn.Conv2d(shape[0], 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),  # after the maximum: the same result for a quarter of the work
        nn.Conv2d(64, 64, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 5 * 5, 384),
        nn.ReLU(),
        nn.Linear(384, 192),
        nn.ReLU(),
        nn.Linear(192, classes),
    )

"""The convolutional network of FedGMT for 3x32x32 images."""

from __future__ import annotations

from torch import nn

from ..core.errors import InputError


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Build two 5x5 convolutions of 32 and 64 channels with padding, each max-pooled, and 512 hidden units."""
    if len(shape) != 3 or shape[1:] != (32, 32):
        raise InputError(f"model 'fedgmt-cnn' takes images (channels, 32, 32), got shape {shape}; try 'cnn'")
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 8 * 8, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )

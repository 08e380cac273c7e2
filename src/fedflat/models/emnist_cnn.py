"""The EMNIST network of FedSAM (after Reddi et al.) for 1x28x28 images: 1,206,590 parameters with 62 classes."""

from __future__ import annotations

from torch import nn

from ..core.errors import InputError


def build(classes: int, shape: tuple[int, ...] = (1, 28, 28)) -> nn.Module:
    """Build two 3x3 convolutions of 32 and 64 channels, max-pooling, dropout, 128 hidden units, and dropout."""
    if len(shape) != 3 or shape[1:] != (28, 28):
        raise InputError(f"model 'emnist-cnn' takes images (channels, 28, 28), got shape {shape}; try 'cnn'")
    return nn.Sequential(
        nn.Conv2d(shape[0], 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )

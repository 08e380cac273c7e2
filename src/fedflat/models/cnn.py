"""A small convolutional network for images of 4x4 or more, such as 8x8 digits and 28x28 MNIST."""

from __future__ import annotations

from torch import nn

from ..core.errors import InputError


def build(classes: int, shape: tuple[int, ...], width: int = 16) -> nn.Module:
    """Build 3x3 convolutions of `width` and `2 width` channels, with ReLU and 2x2 max-pooling, and a linear layer."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(f"model 'cnn' takes images (channels, height, width) of at least 4x4, got shape {shape}")
    features = nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    size = 2 * width * (shape[1] // 4) * (shape[2] // 4)  # two poolings halve height and width, rounded down
    return nn.Sequential(*features, nn.Linear(size, classes))

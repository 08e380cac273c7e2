"""The LeNet of FedGF, Caldarola et al. and FedGloSS for 3x32x32 images: 797,962 parameters with 10 classes."""

from __future__ import annotations

from torch import nn

from ..core.errors import InputError


def build(classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> nn.Module:
    """Build two 5x5 convolutions of 64 channels without padding, each max-pooled, then 384 and 192 hidden units."""
    return lenet_layers("lenet", classes, shape, (64, 64), (384, 192))


def lenet_layers(
    name: str, classes: int, shape: tuple[int, ...], channels: tuple[int, int], units: tuple[int, int]
) -> nn.Module:
    """Build two 5x5 convolutions without padding, each max-pooled, then two hidden layers.

    Raises InputError if `shape` is not that of a 32x32 image.
    """
    if len(shape) != 3 or shape[1:] != (32, 32):
        raise InputError(f"model {name!r} takes images (channels, 32, 32), got shape {shape}; try 'cnn'")
    return nn.Sequential(
        nn.Conv2d(shape[0], channels[0], 5),
        nn.MaxPool2d(2),
        nn.ReLU(),  # after the maximum: the same result for a quarter of the work
        nn.Conv2d(*channels, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels[1] * 5 * 5, units[0]),
        nn.ReLU(),
        nn.Linear(*units),
        nn.ReLU(),
        nn.Linear(units[1], classes),
    )

"""A model of your own: `fedflat run --model model.py:example --model.options '{"hidden": 32}'`."""

from __future__ import annotations

from math import prod

from torch import nn


def example(classes: int, shape: tuple[int, ...], hidden: int = 64) -> nn.Module:
    """Make a network with one hidden layer, for samples of `shape`; `hidden` is its option.

    Any torch module can be used that gives scores (n, classes) for samples (n, *shape) and keeps no statistics of
    batches: use GroupNorm or LayerNorm, not BatchNorm.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))

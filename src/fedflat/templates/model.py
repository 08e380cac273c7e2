"""A model of your own: `fedflat run --model model.py:example --model.options '{"hidden": 32}'`."""

from __future__ import annotations

from math import prod

from torch import nn


def example(classes: int, shape: tuple[int, ...], hidden: int = 64) -> nn.Module:
    """Make a network with one hidden layer, for samples of `shape`; `hidden` is its option.

    Any torch module can be used that gives scores (n, classes) for samples (n, *shape). GroupNorm and LayerNorm
    work as they are; for BatchNorm say what becomes of its statistics, such as `--model.buffers averaged`.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))

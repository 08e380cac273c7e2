"""A multilayer perceptron with ReLU; takes samples of any shape."""

from __future__ import annotations

from math import prod

from torch import nn

from ..core.errors import InputError


def build(classes: int, shape: tuple[int, ...], hidden: tuple[int, ...] = (64,)) -> nn.Module:
    """Build linear layers of widths `hidden` and `classes`; with 64 inputs and 10 classes, 4,810 parameters."""
    widths = [prod(shape), *hidden]
    if min(widths) < 1:
        raise InputError(f"model 'mlp' has hidden layers of at least 1 unit, got hidden = {list(hidden)}")
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip(widths, hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))

"""A multilayer perceptron with ReLU; takes samples of any shape."""

from __future__ import annotations

from math import prod

from torch import nn

from ..core.errors import InputError


def build(classes: int, shape: tuple[int, ...], hidden: tuple[int, ...] = (64,), batch_norm: bool = False) -> nn.Module:
    """Build linear layers of widths `hidden` and `classes`; with 64 inputs and 10 classes, 4,810 parameters.

    batch_norm: whether each hidden layer has a BatchNorm before its ReLU.
    """
    widths = [prod(shape), *hidden]
    if min(widths) < 1:
        raise InputError(f"model 'mlp' has hidden layers of at least 1 unit, got hidden = {list(hidden)}")
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip(widths, hidden, strict=False):
        layers += [nn.Linear(before, after), *([nn.BatchNorm1d(after)] if batch_norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))

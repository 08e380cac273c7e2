"""Numbers that belong to the parameter tensors of a model, beside vectors of all parameters."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

Shapes = Sequence[tuple[int, ...]]  # of the parameters, in their order in a vector


def in_tensors(x: Tensor, shapes: Shapes) -> tuple[Tensor, ...]:
    """Return the parts of a vector `x` (*clients, d) that belong to each parameter tensor, (*clients, size)."""
    return torch.split(x, [prod(shape) for shape in shapes], dim=-1)


def per_coordinate(numbers: Tensor, shapes: Shapes) -> Tensor:
    """Return at each coordinate the number of its parameter tensor, (*clients, d), from (*clients, tensors)."""
    each = [x[..., None].expand(*x.shape, prod(shape)) for x, shape in zip(numbers.unbind(-1), shapes, strict=True)]
    return torch.cat(each, dim=-1)


def mean_of_tensors(x: Tensor, shapes: Shapes) -> Tensor:
    """Return the mean over each parameter tensor, (*clients, tensors), of a vector `x` (*clients, d)."""
    return torch.stack([part.mean(-1) for part in in_tensors(x, shapes)], dim=-1)

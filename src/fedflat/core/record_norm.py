"""How long a record is: one number for all its fields, in the unit of parameters, so that it can be bounded."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from .records import Record

R = TypeVar("R", bound=Record)


def record_norm(
    record: Record,
    lr_sum: Tensor,
    without: frozenset[str] = frozenset(),
    squared: frozenset[str] = frozenset(),
) -> Tensor:
    """The Euclidean norm of all fields of each client's record, but those `without`, (*clients, 1), float64.

    record: (*clients, width) in every field. A field with the scale of gradients counts as the move that it makes in
    the client's local steps, whose step sizes sum to `lr_sum` (*clients, 1); other fields are lengths as they are.
    squared: fields that count as their roots, for they are squares of lengths; then a record whose vectors are c times
    as long has c times the norm. By default nothing does: noise of one size for all fields needs their plain norm.
    """
    gradients = record.marked("gradient_scale")
    squares = []
    for name, x in record.tensors().items():
        if name in without:
            continue
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64)
        if name not in squared:
            length = (length * lr_sum if name in gradients else length) ** 2
        squares.append(length)
    return torch.stack(squares).sum(0).sqrt()


def shortened_to(record: R, norm: Tensor, bound: float, squared: frozenset[str] = frozenset()) -> R:
    """`record` times min(1, bound / norm), every client's as a whole: its direction stays, its norm is at most `bound`.

    norm: (*clients, 1), of `record_norm` with the same `squared`, whose fields are multiplied by the square of that.
    """
    factor = (bound / norm.clamp(min=bound)).nan_to_num(0.0)
    short = {name: x * (factor**2 if name in squared else factor) for name, x in record.tensors().items()}
    return type(record)(**{name: short[name].to(x.dtype) for name, x in record.tensors().items()})

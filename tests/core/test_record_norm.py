"""The norm of a whole record, and records shortened to a bound."""

from __future__ import annotations

import pytest
import torch

from fedflat.core.records import Record, Scalar, Vector, gradient_scale, record_norm, shortened_to, squared_length


class MoveAndControl(Record):
    delta: Vector
    control: Vector = gradient_scale()


def record(*rows: tuple[list[float], list[float]]) -> MoveAndControl:
    delta, control = (torch.tensor(part, dtype=torch.float64) for part in zip(*rows, strict=True))
    return MoveAndControl(delta, control)


def test_a_gradient_counts_as_the_move_that_it_makes() -> None:
    """(3, 4) is 5 long; a gradient of 24 over steps of 0.5 in all moves by 12: together 13."""
    norm = record_norm(record(([3.0, 4.0], [24.0, 0.0]), ([0.0, 0.0], [0.0, 1.0])), torch.tensor([[0.5], [2.0]]))
    assert norm.tolist() == [[13.0], [2.0]]


def test_only_what_is_too_long_is_shortened_and_as_a_whole() -> None:
    lr_sum = torch.tensor([[0.5], [0.5]])
    found = record(([3.0, 4.0], [24.0, 0.0]), ([3.0, 4.0], [0.0, 0.0]))
    short = shortened_to(found, record_norm(found, lr_sum), 6.5)
    assert record_norm(short, lr_sum).flatten().tolist() == pytest.approx([6.5, 5.0], rel=1e-15)
    assert short.delta.tolist() == [[1.5, 2.0], [3.0, 4.0]]
    assert short.control.tolist() == [[12.0, 0.0], [0.0, 0.0]]


def test_zero_stays_zero() -> None:
    found = record(([0.0, 0.0], [0.0, 0.0]))
    assert shortened_to(found, record_norm(found, torch.ones(1, 1)), 1.0).delta.tolist() == [[0.0, 0.0]]


class MoveAndSquare(Record):
    delta: Vector
    square: Scalar = squared_length()


def test_a_squared_length_counts_as_its_root_only_if_asked() -> None:
    """(3, 4) and 25: plainly sqrt(25 + 625), as lengths sqrt(25 + 25); half as long, the square is a quarter."""
    found = MoveAndSquare(torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.tensor([[25.0]], dtype=torch.float64))
    ones, squared = torch.ones(1, 1), found.marked("squared_length")
    assert float(record_norm(found, ones)) == pytest.approx(650**0.5)
    norm = record_norm(found, ones, squared=squared)
    assert float(norm) == pytest.approx(50**0.5)
    short = shortened_to(found, norm, float(norm) / 2, squared)
    assert short.delta.tolist() == [[1.5, 2.0]]
    assert short.square.tolist() == [[6.25]]
    assert float(record_norm(found, ones, without=frozenset({"square"}))) == 5.0

from __future__ import annotations

from dataclasses import FrozenInstanceError
from types import SimpleNamespace
from typing import Annotated

import pytest
import torch
from torch import Tensor

from fedflat.core.records import Model, Nothing, Record, Scalar, Vector, per_round, uniform_mean


class Sample(Record):
    w: Vector
    c: Scalar
    queue: Annotated[Tensor, "window"]


class Conditional(Record):
    w: Vector
    extra: Annotated[Tensor, "d", "wanted"]


class Marked(Record):
    kept: Vector
    passing: Vector = per_round()


class Averaged(Record):
    weighted: Vector
    equal: Scalar = uniform_mean()


def test_widths_come_from_annotations() -> None:
    assert Sample.widths(7, SimpleNamespace(window=4)) == {"w": 7, "c": 1, "queue": 4}
    assert Nothing.widths(7) == {}


def test_a_vector_may_depend_on_an_attribute() -> None:
    for wanted, width in ((True, 7), (False, 0)):
        method = SimpleNamespace(wanted=wanted)
        assert Conditional.widths(7, method) == {"w": 7, "extra": width}
        assert Conditional.zeros(torch.ones(2, 7), method).extra.shape == (2, width)


class Chosen(Record):
    extra: Annotated[Tensor, "d", "kind=far", "rho"]


@pytest.mark.parametrize(("kind", "rho", "width"), [("far", 0.1, 7), ("near", 0.1, 0), ("far", 0.0, 0)])
def test_a_vector_may_depend_on_the_value_of_an_option_and_on_several(kind: str, rho: float, width: int) -> None:
    assert Chosen.widths(7, SimpleNamespace(kind=kind, rho=rho)) == {"extra": width}


def test_zeros_have_the_leading_axes_dtype_and_device_of_their_model() -> None:
    zero = Sample.zeros(torch.ones(2, 3, 5, dtype=torch.float64), SimpleNamespace(window=4))
    assert {name: tuple(x.shape) for name, x in zero.tensors().items()} == {
        "w": (2, 3, 5),
        "c": (2, 3, 1),
        "queue": (2, 3, 4),
    }
    assert all(x.dtype == torch.float64 and not x.any() for x in zero.tensors().values())


def test_map_goes_field_by_field_over_several_records() -> None:
    one, two = Model(torch.ones(3)), Model(torch.full((3,), 2.0))
    assert torch.equal(one.map(lambda a, b: a + b, two).w, torch.full((3,), 3.0))
    assert Nothing().map(lambda x: x) == Nothing()


def test_marks() -> None:
    assert Marked.marked("per_round") == {"passing"}
    assert Averaged.marked("uniform_mean") == {"equal"}
    assert Model.marked("per_round") == frozenset()


def test_records_are_frozen_and_reject_wrong_fields() -> None:
    record = Model(torch.ones(2))
    with pytest.raises(FrozenInstanceError):
        record.w = torch.zeros(2)  # type: ignore[misc]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Model(z=torch.ones(2))  # type: ignore[call-arg]

"""Records as bytes: the same bits again, and nothing else is accepted."""

from __future__ import annotations

import pytest
import torch

from fedflat.core.records import Record, Vector
from fedflat.federation.messages import PackedTensor, RefusedError, pack, unpack


class Pair(Record):
    a: Vector
    b: Vector


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_packed_is_unpacked_to_the_same_bits(dtype: torch.dtype) -> None:
    pair = Pair(a=torch.randn(5, dtype=dtype), b=torch.randn(7, dtype=dtype) * 1e-30)
    packed = pack(pair)
    again = unpack(Pair, {"a": 5, "b": 7}, dtype, packed)
    assert torch.equal(again.a, pair.a)
    assert torch.equal(again.b, pair.b)
    assert packed["a"] == PackedTensor("<f4" if dtype == torch.float32 else "<f8", (5,), pair.a.numpy().tobytes())
    with pytest.raises(RefusedError, match=r"a: shape is \(5,\), expected \(6,\)"):
        unpack(Pair, {"a": 6, "b": 7}, dtype, packed)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused_with_their_number(number: float) -> None:
    packed = pack(Pair(a=torch.tensor([1.0, number, number]), b=torch.zeros(2)))
    with pytest.raises(RefusedError, match=r"^a: 2 of 3 numbers are NaN or infinite$"):
        unpack(Pair, {"a": 3, "b": 2}, torch.float32, packed)

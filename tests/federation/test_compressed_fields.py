"""Compressed vectors as bytes: the same bits again, of the length that is counted, and nothing else is accepted."""

from __future__ import annotations

import pytest
import torch

import fedflat as ff
from fedflat.core.compression import Compression
from fedflat.core.records import Delta
from fedflat.federation.compressed_fields import decoded, encoded
from fedflat.federation.messages import PackedTensor, RefusedError, pack, unpack

TOP = ff.Compression(share=0.02)  # two of a hundred entries: their places are shorter than a bit for each
HALF = ff.Compression(share=0.5)
HOW = [TOP, HALF, ff.Compression(share=1.0), *(ff.Compression(kind="quantise", bits=bits) for bits in (3, 8, 16))]


def vector(width: int = 100, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(3), dtype=dtype)


def sent(how: Compression, x: torch.Tensor) -> torch.Tensor:
    return how.compressed(x, lambda x: torch.rand(x.shape, generator=torch.Generator().manual_seed(4)).double())


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [2, 7, 8, 100, 1003])
def test_the_same_bits_come_back_from_the_counted_bytes(how: Compression, dtype: torch.dtype, width: int) -> None:
    for x in (vector(width, dtype), vector(width, dtype) * 1e-30, torch.zeros(width, dtype=dtype),
              vector(width, dtype) * (torch.arange(width) % 50 == 0)):  # fmt: skip
        message = sent(how, x)
        data = encoded(message, how)
        assert len(data) == how.bytes_of(width, dtype.itemsize)
        again = decoded(data, how, width, dtype)
        assert again.dtype == dtype
        assert again.numpy().tobytes() == message.numpy().tobytes()


def test_counted_bytes_are_those_of_the_layout() -> None:
    """100 entries, single precision: two numbers and places; 50 numbers and 13 bytes of bits; a scale and planes."""
    assert [how.bytes_of(100, 4) for how in HOW] == [2 * 8, 200 + 13, 400 + 13, 4 + 3 * 13, 4 + 8 * 13, 4 + 16 * 13]


def numbers(*values: float) -> bytes:
    return torch.tensor(values, dtype=torch.float32).numpy().tobytes()


def places(*values: int) -> bytes:
    return torch.tensor(values, dtype=torch.int32).numpy().tobytes()


QUANTISED = ff.Compression(kind="quantise", bits=3)
ONE_IN_FOUR = ff.Compression(share=0.25)  # of four entries: one number, and a byte whose first four bits are entries
WRONG = [
    (TOP, 100, numbers(1, 2) + places(5, 5), "the places are not 2 rising ones of 100"),
    (TOP, 100, numbers(1, 2) + places(5, 3), "the places are not 2 rising ones of 100"),
    (TOP, 100, numbers(1, 2) + places(5, 100), "the places are not 2 rising ones of 100"),
    (TOP, 100, numbers(1, 2) + places(5, -1), "the places are not 2 rising ones of 100"),
    (TOP, 100, numbers(1, float("nan")) + places(5, 6), "numbers are NaN or infinite"),
    (TOP, 100, numbers(1, float("inf")) + places(5, 6), "numbers are NaN or infinite"),
    (ONE_IN_FOUR, 4, numbers(1) + b"\x00", "the places are not 1 rising ones of 4"),
    (ONE_IN_FOUR, 4, numbers(1) + b"\xc0", "the places are not 1 rising ones of 4"),
    (ONE_IN_FOUR, 4, numbers(1) + b"\x81", "bits beyond the last entry are not 0"),
    (QUANTISED, 4, numbers(1) + b"\xf0\xf0\xf0", "the largest magnitude or a multiple of it is out of range"),
    (QUANTISED, 4, numbers(1) + b"\x0f\x00\x00", "bits beyond the last entry are not 0"),
    *((QUANTISED, 4, numbers(scale) + b"\x00\x00\x00", "the largest magnitude or a multiple of it is out of range")
      for scale in (-1.0, float("nan"), float("inf"))),
]  # fmt: skip


@pytest.mark.parametrize(("how", "width", "data", "message"), WRONG, ids=str)
def test_bytes_that_no_client_writes_are_refused(how: Compression, width: int, data: bytes, message: str) -> None:
    packed = {"delta": PackedTensor("|u1", (len(data),), data)}
    with pytest.raises(RefusedError, match=f"delta: {message}"):
        unpack(Delta, {"delta": width}, torch.float32, packed, {"delta": how})


def test_another_length_or_an_uncompressed_vector_is_refused_before_it_is_read() -> None:
    right = pack(Delta(sent(TOP, vector())), {"delta": TOP})["delta"]
    for wrong, message in (
        (PackedTensor("|u1", (16,), right.data + b"\x00"), "bytes is 17, expected 16"),
        (PackedTensor("|u1", (10**12,), right.data), r"shape is \(1000000000000,\), expected \(16,\)"),
        (pack(Delta(vector()))["delta"], r"dtype is '<f4', expected \|u1"),
    ):
        with pytest.raises(RefusedError, match=f"delta: {message}"):
            unpack(Delta, {"delta": 100}, torch.float32, {"delta": wrong}, {"delta": TOP})
    with pytest.raises(RefusedError, match=r"delta: dtype is '\|u1', expected <f4"):
        unpack(Delta, {"delta": 100}, torch.float32, {"delta": right})

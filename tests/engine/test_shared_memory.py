"""Memory that processes share, and pickles of objects whose numbers are in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedflat.engine.shared_memory import SharedMemory, TensorAllocator, join_pickle, split_pickle
from fedflat.rounds.device import ALIGNED, aligned


def copied(thing: object) -> object:
    """Split and joined in memory of its own, as in another process."""
    return join_pickle([bytearray(part) for part in split_pickle(thing)])


def test_what_one_side_writes_the_other_reads() -> None:
    mine = SharedMemory(1000)
    its = SharedMemory(1000, mine.descriptor)
    mine.tensor(64, (2, 3), torch.float64)[1] = 7.0
    assert its.tensor(64, (2, 3), torch.float64).tolist() == [[0.0] * 3, [7.0] * 3]


def test_tensors_outlive_the_object_that_cut_them() -> None:
    x = SharedMemory(100).tensor(0, (3,), torch.float32).fill_(2.0)
    assert x.tolist() == [2.0] * 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=8))
def test_tensors_are_aligned_and_apart(shapes: list[tuple[int, int]]) -> None:
    """Each keeps what is written to it, whatever is written to the others; what was counted is enough."""
    count = TensorAllocator()
    for shape in shapes:
        assert count(shape, torch.float32).shape == shape
    cut = TensorAllocator(SharedMemory(max(count.size, 1)))
    tensors = [cut(shape, torch.float32).fill_(i) for i, shape in enumerate(shapes)]
    assert cut.size == count.size
    assert all((x == i).all() for i, x in enumerate(tensors))
    assert all(x.data_ptr() % ALIGNED == 0 for x in tensors if x.numel())


def test_aligned_copies_only_what_it_must() -> None:
    x = torch.arange(100.0)
    assert aligned(x) is x
    for odd in (x[1:], x[::2], x[:1].expand(5, 1), x.reshape(10, 10).T):
        moved = aligned(odd)
        assert torch.equal(moved, odd)
        assert moved.is_contiguous()
        assert moved.data_ptr() % ALIGNED == 0


def test_numbers_are_not_copied() -> None:
    """Neither when they are taken out of an object, nor when it is put together."""
    x, y = torch.zeros(1000), np.zeros(1000, dtype=np.int64)
    plan, *arrays = split_pickle({"x": x, "again": x, "y": y})
    assert len(arrays) == 2, "one object seen twice is one object"
    assert len(plan) < 1000
    x[3], y[4] = 5.0, 6
    rooms = [bytearray(part) for part in arrays]
    other = join_pickle([plan, *rooms])
    assert (other["x"][3], other["y"][4]) == (5.0, 6)
    assert other["again"] is other["x"]
    rooms[0][:] = bytes(4000)
    assert not other["x"].any()


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(0, 3),
        torch.tensor(3.0),
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(6.0).to(torch.bfloat16),
        torch.ones(1).expand(4),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.tensor([True, False]),
        torch.ones(2, requires_grad=True),
        torch.tensor([1 + 2j]).conj(),
        nn.Parameter(torch.ones(2)),
    ],
    ids=[
        "empty",
        "number",
        "transposed",
        "bfloat16",
        "expanded",
        "channels last",
        "bool",
        "graph",
        "conj",
        "parameter",
    ],
)
def test_tensors_of_every_kind_arrive_as_they_are(x: torch.Tensor) -> None:
    got = copied(x)
    assert isinstance(got, type(x))
    assert torch.equal(got, x)
    assert (got.dtype, got.stride(), got.requires_grad) == (x.dtype, x.stride(), x.requires_grad)


def test_arrays_without_numbers_arrive() -> None:
    memory = SharedMemory(10_000)
    cut = TensorAllocator(memory)
    parts = split_pickle([np.zeros((0, 2)), np.arange(3)])
    shelves = [cut((len(part),), torch.uint8).numpy() for part in parts]
    for shelf, part in zip(shelves, parts, strict=True):
        shelf[:] = np.frombuffer(part, np.uint8)
    empty, three = join_pickle(shelves)
    assert empty.shape == (0, 2)
    assert three.tolist() == [0, 1, 2]


def test_a_module_computes_the_same() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 2)).eval()
    got, x = copied(module), torch.randn(5, 3, 4, 4)
    assert torch.equal(got(x), module(x))
    assert not any(layer.training for layer in got.modules())


def test_functions_without_a_name_arrive() -> None:
    factor = 3.0
    assert copied(lambda x: factor * x)(2.0) == 6.0

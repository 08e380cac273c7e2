from __future__ import annotations

from math import inf

import numpy as np
import pytest
import torch

import fedflat as ff

X, Y = np.zeros((4, 2)), np.array([0, 1, 1, 0])


def test_clients_come_back_as_given() -> None:
    pairs = [(np.random.rand(n, 3), np.arange(n) % 4) for n in (2, 5, 1)]
    data = ff.FederatedData.from_clients(pairs, test=(np.zeros((2, 3)), [0, 3]))
    assert (data.clients, data.classes, data.shape, list(data.sizes)) == (3, 4, (3,), [2, 5, 1])
    for i, (x, y) in enumerate(pairs):
        got = data.client(i)
        assert np.array_equal(got[0], x)
        assert np.array_equal(got[1], y)
    assert data.counts().tolist() == [[1, 1, 0, 0], [2, 1, 1, 1], [1, 0, 0, 0]]


def test_a_hundred_thousand_clients_are_arrays() -> None:
    members = np.arange(200_000, dtype=np.int64)
    data = ff.FederatedData(
        torch.zeros(200_000, 1), torch.zeros(200_000, dtype=torch.int64), members, np.arange(0, 200_001, 2), classes=1
    )
    assert data.clients == 100_000
    assert data.counts().shape == (100_000, 1)


@pytest.mark.parametrize(
    ("clients", "test", "message"),
    [
        ([], None, "needs at least one client"),
        ([(X, Y), (X[:0], Y[:0])], None, "client 1 has no sample"),
        ([(X, Y[:3])], None, r"client 0 has x of shape \(4, 2\) and y of shape \(3,\)"),
        ([(X, Y + 0.5)], None, "client 0 labels are not whole numbers"),
        ([(X, Y), (np.zeros((4, 3)), Y)], None, r"client 1 has samples of shape \(3,\), client 0 of shape \(2,\)"),
        ([(X, Y - 1)], None, "training label -1 of sample 0 is negative; classes are numbered from 0"),
        ([(np.array([[1.0, np.nan]]), [0])], None, r"training sample 0 has a value that is NaN or infinite \(1 of 1"),
        ([(X, Y)], (np.full((1, 2), np.inf), [0]), "test sample 0 has a value that is NaN or infinite"),
        ([(X, Y)], (np.zeros((1, 3)), [0]), r"test has samples of shape \(3,\), client 0 of shape \(2,\)"),
        ([(X, Y)], (np.zeros((1, 2)), [5]), r"test label 5 of sample 0 is outside 0\.\.1"),
        ({"a": (X, Y)}, None, r"from_clients takes a list of \(x, y\), one per client"),
        ([(X, ["a", "b", "c", "d"])], None, "classes = 2, and the labels are 4 names"),
        ([(X, Y, Y)], None, r"client 0 must be a pair \(x, y\) of arrays"),
        ([(np.zeros(4), Y)], None, r"client 0 has x of shape \(4,\)"),
    ],
)
def test_mistakes_are_one_line_that_names_the_culprit(clients, test, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        ff.FederatedData.from_clients(clients, test=test, classes=2 if clients else None)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members": np.array([0, 4])}, r"members name samples outside 0\.\.3"),
        ({"offsets": np.array([0, 2, 1, 2])}, "offsets must rise from 0 to the 2 members"),
        ({"offsets": np.array([0, 3])}, "offsets must rise from 0 to the 2 members"),
        ({"x": torch.zeros(3, 2)}, r"x must be real, of shape \(n, \.\.\.\) with n = 4, got \(3, 2\)"),
        (
            {"x": torch.zeros(4, 2).to(torch.float8_e5m2)},
            "x must have at least 16 bits a number, got torch.float8",
        ),
        ({"x": torch.tensor([[0.0, 0], [inf, 0], [-inf, 0], [1, 1]])}, r"sample 1 has a value .* \(2 of 4 samples\)"),
        ({"classes": 0}, "classes must be a whole number of at least 1, got 0"),
        ({"offsets": np.array([0, 0, 2])}, r"client 0 has no sample \(1 of 2 clients are empty\)"),
    ],
)
def test_tensors_and_index_must_fit_together(changes: dict, message: str) -> None:
    good = {"x": torch.zeros(4, 2), "y": torch.tensor(Y), "members": np.array([0, 1]), "offsets": np.array([0, 2])}
    with pytest.raises(ValueError, match=message):
        ff.FederatedData(**(good | {"classes": 2} | changes))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_samples_whose_sum_is_infinite_are_finite(dtype: torch.dtype) -> None:
    x = torch.full((4, 2), torch.finfo(dtype).max, dtype=dtype)
    assert not x.sum().isfinite()
    data = ff.FederatedData(x=x, y=torch.tensor(Y), members=np.array([0]), offsets=np.array([0, 1]), classes=2)
    assert torch.equal(data.x, x)


def test_moving_keeps_whole_numbers_whole() -> None:
    tokens = ff.FederatedData.from_clients([(np.array([[3, 4]]), [0])])
    assert tokens.to(torch.device("cpu"), torch.float64).x.dtype == torch.int64
    floats = ff.FederatedData.from_clients([(X, Y)])
    assert floats.to(torch.device("cpu"), torch.float32).x.dtype == torch.float32


def test_the_hash_tells_splits_apart() -> None:
    one, same, other = (ff.data.load("digits", clients=10, seed=seed) for seed in (0, 0, 1))
    assert one.partition_hash() == same.partition_hash() != other.partition_hash()


def test_it_is_shown_without_its_samples() -> None:
    data = ff.data.load("digits", clients=5, partition=ff.Dirichlet(alpha=0.5))
    assert (
        repr(data) == "FederatedData(digits: 1,347 samples of 1 x 8 x 8 in 10 classes, 5 clients, Dirichlet(alpha=0.5))"
    )

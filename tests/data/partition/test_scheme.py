"""What a scheme of the user's own gives is checked where it is taken over, and every mistake names the scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data.partition import Partition
from fedflat.data.partition.scheme import Samples

X, Y = np.zeros((12, 3), dtype=np.float32), np.arange(12) % 2


def scheme(split: Callable[..., Any]) -> Partition:
    """A scheme of the user's own with this `split`."""
    return type("Mine", (ff.Partition,), {"split": split})()


def giving(parts: Any) -> Partition:
    return scheme(lambda self, samples, clients, rng: parts)


def divided(partition: Partition) -> ff.FederatedData:
    return ff.FederatedData.split(X, Y, clients=3, partition=partition)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([[0, 1], [2, 3]], "split must give the samples of 3 clients (data.clients), it gives 2 clients"),
        ([[0], [1], [2], [3]], "split must give the samples of 3 clients (data.clients), it gives 4 clients"),
        (None, "split must give the samples of 3 clients (data.clients), it gives nothing"),
        (7, "split must give the samples of 3 clients (data.clients), it gives a int"),
        ([[0], [], [2]], "split gives client 1 no sample"),
        ([[0], [1], [5, 3, 3]], "split gives client 2 indices that do not ascend; sort them (np.sort)"),
        ([[0], [1], [-1, 3]], "split gives client 2 indices outside 0..11: -1"),
        ([[0], [1, 12], [2]], "split gives client 1 indices outside 0..11: 12"),
        (
            [[0.0, 1.0], [1], [2]],
            "split gives client 0 an array of float64 and shape (2,), not whole numbers of shape (n,)",
        ),
        ([[True] * 12] * 3, "split gives client 0 an array of bool and shape (12,), not whole numbers of shape (n,)"),
        ([0, 1, 2], "split gives client 0 an array of int64 and shape (), not whole numbers of shape (n,)"),
        ([[[0], [1, 2]], [1], [2]], "split gives client 0 an array of object and shape (), not whole numbers of shape"),
    ],
)
def test_what_is_no_split_names_the_scheme(parts: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        divided(giving(parts))
    assert str(caught.value).startswith("partition ")
    assert "Mine: " + message in str(caught.value)


def test_an_error_in_split_names_the_scheme_and_keeps_its_cause() -> None:
    def raises(self: Partition, samples: Samples, clients: int, rng: np.random.Generator) -> Any:
        raise RuntimeError("mine\nand more")

    with pytest.raises(
        InputError, match=r"^partition .*Mine: split raised RuntimeError: mine \(test_scheme.py, line "
    ) as caught:
        divided(scheme(raises))
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_other_arguments_of_split_are_named() -> None:
    with pytest.raises(InputError, match=r"Mine: Mine.split\(self, samples\) is called with \(self, samples, clients"):
        divided(scheme(lambda self, samples: []))


def test_a_sample_may_belong_to_several_clients_and_twice_to_one() -> None:
    """As with the schemes with refill; lists and tuples will do."""
    data = divided(giving(([0, 0, 4], [4, 5], np.array([11]))))
    assert [data.held(slice(*ends)).tolist() for ends in ((0, 3), (3, 5), (5, 6))] == [[0, 0, 4], [4, 5], [11]]


def test_an_error_in_a_scheme_of_the_package_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("fedflat.data.partition.iid.cut", broken)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        divided(ff.data.IID())

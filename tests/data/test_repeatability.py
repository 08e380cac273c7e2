"""A random transform in a dataset, which is read once, is named; nothing that is drawn elsewhere changes."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

import fedflat as ff
from support.files import refused

N = 40
PICTURE = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
OWN = np.random.default_rng(0)


class Transformed(Dataset):
    def __init__(self, transform: Callable[[torch.Tensor], object], label: Callable[[int], object] = lambda i: i % 2):
        self.transform, self.label = transform, label

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple:
        return self.transform(torch.arange(6.0) + i), self.label(i)


class Rows(Transformed):
    column_names = ("x", "y")

    def __getitem__(self, i: int) -> dict:
        return dict(zip("xy", super().__getitem__(i), strict=True))

    def __iter__(self) -> Iterator[dict]:
        return map(self.__getitem__, range(N))


class CountedStream(IterableDataset):
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[tuple]:
        return iter([(torch.zeros(2), 0)] * 3)


def seeded(x: torch.Tensor) -> torch.Tensor:
    """Noise that is the same in every epoch; the state of the generator changes all the same."""
    torch.manual_seed(int(x[0]))
    return x + torch.rand(6)


def split(dataset: object) -> ff.FederatedData:
    columns = ("x", "y") if isinstance(dataset, Rows) else None
    return ff.FederatedData.split(dataset, clients=2, columns=columns)


RANDOM = {
    "torch": lambda x: x + torch.rand(()),
    "numpy": lambda x: x + np.random.rand(),
    "random": lambda x: x + random.random(),
    "own generator": lambda x: x + OWN.random(),
    "flips half of them": lambda x: x.flip(0) if random.random() < 0.5 else x,
    "changes one in ten": lambda x: x if random.random() < 0.9 else 2 * x,
    "list": lambda x: [random.random(), 0.0],
    "picture": lambda x: Image.fromarray(PICTURE if torch.rand(()) < 0.5 else 255 - PICTURE),
}


@pytest.mark.parametrize("kind", [Transformed, Rows])
@pytest.mark.parametrize("name", RANDOM)
def test_random_transforms_are_named_and_draw_nothing_more(kind: type, name: str) -> None:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    dataset = kind(RANDOM[name])
    [dataset[i] for i in range(N)]
    expected = random.random(), np.random.rand(), float(torch.rand(()))
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    with pytest.warns(
        UserWarning, match=r"^data: training: sample \d+ is another one when it is read again; .*leave it"
    ):
        split(dataset)
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


def test_random_labels_are_named() -> None:
    with pytest.warns(UserWarning, match="sample 0 is another"):
        split(Transformed(lambda x: x, lambda i: str(np.random.randint(10**9))))


def test_the_test_samples_are_looked_at_too() -> None:
    with pytest.warns(UserWarning, match="data: test: sample 0 is another"):
        ff.FederatedData.split(np.zeros((4, 6)), np.arange(4) % 2, test=Transformed(RANDOM["torch"]), clients=2)


@pytest.mark.parametrize("kind", [Transformed, Rows])
@pytest.mark.parametrize(
    "transform", [lambda x: x, seeded, lambda x: Image.fromarray(PICTURE), lambda x: x.numpy(), lambda x: x.tolist()]
)
def test_what_is_the_same_in_every_epoch_is_not_named(kind: type, transform) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split(kind(transform))


def test_streams_and_loaders_are_refused() -> None:
    with refused("a dataset with a length and items", "got CountedStream"):
        split(CountedStream())

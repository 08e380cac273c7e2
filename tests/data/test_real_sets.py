"""The sets themselves, where FEDFLAT_DATA names a folder that has them: known counts and known statistics."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from support.files import refused
from support.memory import peak_of_a_load

DATA = os.environ.get("FEDFLAT_DATA")
CACHE = os.environ.get("FEDFLAT_CACHE")

pytestmark = pytest.mark.skipif(not DATA, reason="FEDFLAT_DATA is not set: no real data sets to read")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own if one is named, else one for all tests here: a conversion takes a while."""
    folder = CACHE or str(tmp_path_factory.getbasetemp() / "converted")
    monkeypatch.setenv("FEDFLAT_CACHE", folder)


def load(name: str, **options) -> ff.FederatedData:
    if not (Path(DATA) / name).is_dir():
        pytest.skip(f"the folder in FEDFLAT_DATA has no {name}")
    return ff.data.load(name, **({"clients": 100, "data_dir": DATA} | options))


def statistics(x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel over all pixels in [0, 1], from the counts of the 256 values."""
    counts = np.stack([np.bincount(x[:, channel].reshape(-1), minlength=256) for channel in range(x.shape[1])])
    shares, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
    means = shares @ values
    return means, np.sqrt(shares @ values**2 - means**2)


def per_class(y: torch.Tensor) -> list[int]:
    return torch.bincount(y).tolist()


# Of the originals; a good lossy copy is near to them.
CIFAR = {
    "cifar10": (10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": (100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


@pytest.mark.parametrize("name", CIFAR)
def test_cifar(name: str) -> None:
    data = load(name)
    classes, means, stds = CIFAR[name]
    assert (tuple(data.x.shape), tuple(data.test[0].shape)) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert (data.x.dtype, data.classes) == (torch.uint8, classes)
    assert per_class(data.y) == [50_000 // classes] * classes
    assert per_class(data.test[1]) == [10_000 // classes] * classes
    found = statistics(data.x)
    assert found[0] == pytest.approx(means, abs=5e-4)
    assert found[1] == pytest.approx(stds, abs=5e-4)
    assert data.preparation.mean == pytest.approx(means, abs=2e-3)
    assert data.preparation.std == pytest.approx(stds, abs=2e-3)


GREY = {"mnist": (0.1307, 0.3081), "fashion_mnist": (0.2860, 0.3530)}


@pytest.mark.parametrize("name", GREY)
def test_mnist_and_its_relative(name: str) -> None:
    data = load(name)
    assert (tuple(data.x.shape), tuple(data.test[0].shape)) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    mean, std = statistics(data.x)
    assert (round(mean[0], 4), round(std[0], 4)) == GREY[name] == (data.preparation.mean[0], data.preparation.std[0])
    prepared = data.inputs(torch.arange(60_000)).double()
    assert abs(float(prepared.mean())) < 1e-3
    assert float(prepared.std()) == pytest.approx(1, abs=1e-3)


def test_classes_of_mnist() -> None:
    """LeCun's counts of the digits 0 to 9."""
    data = load("mnist")
    assert per_class(data.y) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert per_class(data.test[1]) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_classes_of_fashion_mnist() -> None:
    data = load("fashion_mnist")
    assert per_class(data.y) == [6000] * 10
    assert per_class(data.test[1]) == [1000] * 10


PACS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}


@pytest.mark.parametrize("name", PACS)
def test_a_domain_of_pacs_held_out(name: str) -> None:
    data = load("pacs", image_size=64, test_domain=name, clients=3, partition=ff.data.partition.Domain())
    assert (data.shape, data.classes) == ((3, 64, 64), 7)
    assert (len(data.y), len(data.test[1])) == (9991 - PACS[name], PACS[name])
    assert data.sizes.tolist() == [number for other, number in PACS.items() if other != name]


def test_domains_and_classes_of_pacs() -> None:
    load("pacs", image_size=64, test_domain="photo")
    whole = ff.data.prepare("pacs", DATA, image_size=64)
    assert whole.domains == tuple(PACS)
    assert np.bincount(whole.train.domain).tolist() == list(PACS.values())
    counts = per_class(whole.train.y)
    assert (min(counts), max(counts), sum(counts)) == (943, 1729, 9991)
    sketched_houses = (whole.train.domain == whole.domains.index("sketch")) & (whole.train.y.numpy() == 5)
    assert sketched_houses.sum() == 80


TEXTS = {"ag_news": (4, 120_000, 7_600), "dbpedia_14": (14, 560_000, 70_000)}


@pytest.mark.parametrize("name", TEXTS)
def test_a_part_of_a_set_of_texts_needs_permission(name: str) -> None:
    data = load(name, partial=True)
    _, whole, _ = TEXTS[name]
    if len(data.y) == whole:
        pytest.skip(f"the {name} in FEDFLAT_DATA is whole")
    with refused(f"data.name = {name!r}: train has {len(data.y):,} samples, the set has {whole:,}", "--data.partial"):
        load(name)


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    data = load(name, partial=True)
    classes, _, _ = TEXTS[name]
    assert (data.shape, data.classes, data.x.dtype) == ((128,), classes, torch.int16)
    assert per_class(data.y) == [len(data.y) // classes] * classes
    assert per_class(data.test[1]) == [len(data.test[1]) // classes] * classes
    assert data.vocabulary[:2] == ("<pad>", "<unk>")
    assert "the" in data.vocabulary[2:5]
    assert 10_000 < len(data.vocabulary) <= 30_000
    assert int(data.x.max()) == len(data.vocabulary) - 1
    assert not (data.x[:, 0] == 0).any(), "no text is empty"
    known = (data.test[0] > 1).sum() / (data.test[0] > 0).sum()
    assert known > 0.8


def test_the_test_part_of_ag_news() -> None:
    assert per_class(load("ag_news", partial=True).test[1]) == [1900] * 4


def test_a_second_load_of_cifar10_takes_little_more_memory_than_its_pictures() -> None:
    load("cifar10")
    bytes_of_pictures = 60_000 * 3 * 32 * 32
    peak, _ = peak_of_a_load("cifar10", Path(DATA))
    assert 0.9 * bytes_of_pictures < peak < 1.3 * bytes_of_pictures

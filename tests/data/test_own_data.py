from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data.federated import Holdings
from fedflat.data.partition import all_partitions

N = 240
X = np.arange(N * 3, dtype=np.float32).reshape(N, 3)  # each sample is another one
Y = np.arange(N) % 4
PICTURES = np.arange(N * 48, dtype=np.int64).astype(np.uint8).reshape(N, 3, 4, 4)
GROUPS = {"domain": np.array(["art", "photo"])[np.arange(N) % 2], "user": np.arange(N) // 10}


class Columns:
    """As `datasets.Dataset` 5.2.0 behaves: rows are dictionaries, also when one iterates; column names are a list."""

    def __init__(self, **columns: list) -> None:
        self._columns, self.column_names = columns, list(columns)
        self.features = {name: SimpleNamespace(dtype="int64") for name in columns}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, i: int) -> dict:
        return {name: column[i] for name, column in self._columns.items()}

    def __iter__(self) -> Iterator[dict]:
        return map(self.__getitem__, range(len(self)))


class Parts(dict):
    """As `datasets.DatasetDict` 5.2.0: the column names of each part."""

    @property
    def column_names(self) -> dict[str, list[str]]:
        return {part: dataset.column_names for part, dataset in self.items()}


class Items(Dataset):
    def __init__(self, *items: object) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> object:
        return self.items[i]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple]:
        return iter([(torch.zeros(2), 0)])


def rows(*some: torch.Tensor) -> list[tuple]:
    """The samples, in an order that does not depend on how they were split."""
    return sorted(tuple(row.flatten().tolist()) for x in some for row in x)


@pytest.mark.parametrize("name", all_partitions())
def test_every_partition_takes_own_arrays(name: str) -> None:
    scheme = all_partitions()[name]()
    data = ff.FederatedData.split(X, Y, clients=8, partition=scheme, test=0.25, validation=0.2, **GROUPS)
    assert (data.clients, data.classes, data.shape, data.partition) == (8, 4, (3,), scheme)
    test_x, test_y = data.test
    assert rows(data.x, test_x) == rows(torch.tensor(X))  # no sample is lost, and none is on both sides
    for x, y in ((data.x, data.y), (test_x, test_y)):  # labels stay with their samples: row i begins with 3 i
        assert torch.equal(y, (x[:, 0] / 3).long() % 4)
    held_out = data.validation.parts()
    for own, apart in zip(Holdings(data.members, data.offsets).parts(), held_out, strict=True):
        assert len(apart)
        assert not set(own) & set(apart)


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6), share=st.floats(0.05, 0.9))
@settings(max_examples=40, deadline=None)
def test_a_share_for_test_has_the_classes_in_proportion(sizes: list[int], share: float) -> None:
    y = np.repeat(np.arange(len(sizes)), sizes)
    number = round(share * len(y))
    if not 0 < number < len(y):
        return
    data = ff.FederatedData.split(np.zeros((len(y), 1)), y, clients=1, test=share, classes=len(sizes))
    counts = np.bincount(data.test[1].numpy(), minlength=len(sizes))
    assert counts.sum() == number
    assert (np.abs(counts - number * np.array(sizes) / len(y)) < 1 + 1e-9).all()


def test_the_seed_moves_the_split_and_the_validation_samples_but_not_the_test_samples() -> None:
    one, same, other = (
        ff.FederatedData.split(X, Y, clients=6, partition=ff.Dirichlet(alpha=1.0), test=0.2, validation=0.3, seed=seed)
        for seed in (0, 0, 1)
    )
    assert one.partition_hash() == same.partition_hash() != other.partition_hash()
    assert one.contents_hash() == other.contents_hash()
    assert torch.equal(one.test[0], other.test[0])


def test_a_split_of_digits_is_that_of_the_set_by_name() -> None:
    known = ff.data.load("digits", clients=20, partition=ff.Dirichlet(alpha=0.3), seed=3, validation=0.2)
    whole = ff.data.load("digits", clients=1)
    own = ff.FederatedData.split(
        whole.x, whole.y, clients=20, partition=ff.Dirichlet(alpha=0.3), seed=3, validation=0.2, test=whole.test
    )
    assert own.partition_hash() == known.partition_hash()
    assert own.contents_hash() == known.contents_hash()


def test_domains_and_users_decide_who_holds_what() -> None:
    by_domain = ff.FederatedData.split(X, Y, clients=4, partition=ff.Domain(), domain=GROUPS["domain"])
    for i in range(4):
        assert set((by_domain.client(i)[0][:, 0] / 3 % 2).tolist()) == {float(i // 2)}
    by_user = ff.FederatedData.split(
        X, Y, clients=24, partition=ff.Natural(), user=[f"u{i:03}" for i in GROUPS["user"]]
    )
    for i in range(24):
        assert (by_user.client(i)[0][:, 0] / 30).int().tolist() == [i] * 10


def test_domains_follow_their_samples_when_some_are_held_out() -> None:
    data = ff.FederatedData.split(X, Y, clients=2, partition=ff.Domain(), domain=GROUPS["domain"], test=0.3)
    assert [set((data.client(i)[0][:, 0] / 3 % 2).tolist()) for i in range(2)] == [{0.0}, {1.0}]


def test_a_dataset_of_torch_is_its_arrays() -> None:
    dataset = TensorDataset(torch.tensor(X), torch.tensor(Y))
    one, other = ff.FederatedData.split(X, Y, clients=5), ff.FederatedData.split(dataset, clients=5, test=dataset)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.y, other.y)
    assert torch.equal(other.test[0], one.x)
    assert one.partition_hash() == other.partition_hash()


def test_pictures_of_pillow_have_their_channels_first() -> None:
    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    colour = ff.FederatedData.split(Items(*((Image.fromarray(p), i) for i, p in enumerate(pixels))), clients=1)
    assert torch.equal(colour.x, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    grey = ff.FederatedData.split(Items((Image.fromarray(pixels[0, :, :, 0]), 0)), clients=1)
    assert torch.equal(grey.x[0, 0], torch.from_numpy(pixels[0, :, :, 0]))


def test_a_dataset_with_columns_is_its_arrays() -> None:
    dataset = Columns(id=list(range(N)), points=X.tolist(), label=Y.tolist(), site=GROUPS["domain"].tolist())
    data = ff.FederatedData.split(
        dataset, columns=("points", "label"), domain="site", partition=ff.Domain(), clients=4, test=dataset
    )
    same = ff.FederatedData.split(X, Y, domain=GROUPS["domain"], partition=ff.Domain(), clients=4, test=(X, Y))
    assert data.partition_hash() == same.partition_hash()
    assert torch.equal(data.x, torch.tensor(X))
    assert torch.equal(data.test[1], torch.tensor(Y))


def test_classes_that_a_dataset_declares_count_even_if_a_class_has_no_sample() -> None:
    dataset = Columns(points=X.tolist(), label=Y.tolist())
    dataset.features["label"] = SimpleNamespace(dtype="int64", num_classes=9)
    assert ff.FederatedData.split(dataset, columns=("points", "label"), clients=2).classes == 9
    assert ff.FederatedData.split(dataset, columns=("points", "label"), clients=2, classes=5).classes == 5


def test_own_clients_may_hold_samples_out_and_augment() -> None:
    pairs = [(PICTURES[i::3], Y[i::3]) for i in range(3)]
    data = ff.FederatedData.from_clients(pairs, validation=0.25, augment="crop-flip", seed=4)
    assert data.validation.sizes.tolist() == [20, 20, 20]
    assert data.augmentation is not None
    assert data.partition_hash() != ff.FederatedData.from_clients(pairs, validation=0.25, seed=5).partition_hash()


def test_own_arrays_are_copied() -> None:
    x = X.copy()
    data = ff.FederatedData.split(x, Y, clients=2)
    x[:] = 0
    assert torch.equal(data.x, torch.tensor(X))


def test_the_repr_is_one_short_line() -> None:
    text = repr(ff.FederatedData.split(X, Y, clients=8, test=0.25))
    assert text == "FederatedData(data: 180 samples of 3 in 4 classes, 8 clients, IID(stratified=False))"


@pytest.mark.slow
def test_a_model_trains_on_own_arrays() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = rng.normal(size=(120, 5)) + 6 * np.eye(5)[y]  # three clouds far apart
    data = ff.FederatedData.split(x, y, clients=4, partition=ff.Dirichlet(alpha=1.0), test=0.25)
    client = ff.Client(lr=0.2, epochs=5, batch_size=10)
    run = ff.Simulation("mlp", data, ff.methods.FedAvg(), client=client, rounds=5, dtype=torch.float32).run()
    assert run.summary["test_accuracy_last"] > 0.95


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ff.FederatedData.split(X, clients=2), r"training has x of shape \(240, 3\) and no y; give"),
        (lambda: ff.FederatedData.split(X, Y[:7], clients=2), r"training has x of shape \(240, 3\) and y of shape"),
        (lambda: ff.FederatedData.split("cifar10", clients=2), "a dataset with a length and items .*, got str"),
        (lambda: ff.FederatedData.split(Stream(), clients=2), "a dataset with a length and items .*, got Stream"),
        (lambda: ff.FederatedData.split({"x": X, "y": Y}, clients=2), "a dataset with a length and items .*, got dict"),
        (lambda: ff.FederatedData.split(Items(), clients=2), "training has no sample"),
        (lambda: ff.FederatedData.split(Items((X[0], 0), X[1]), clients=2), "item 1 must be a pair .*, got ndarray"),
        (lambda: ff.FederatedData.split(Items((X[0], 0), (X[1, :2], 0)), clients=2), "sample 1 has shape .*one size"),
        (lambda: ff.FederatedData.split(Items(("a text", 0)), clients=2), "sample 0 has texts; .* token numbers first"),
        (lambda: ff.FederatedData.split(Columns(a=[1], b=[2]), clients=1), "say which columns .* it has a, b"),
        (
            lambda: ff.FederatedData.split(Columns(a=[1], b=[2]), columns=("a", "c"), clients=1),
            "training has no column 'c'; its columns are a, b",
        ),
        (
            lambda: ff.FederatedData.split(Parts(train=Columns(a=[1])), columns=("a", "a"), clients=1),
            r"has several parts \(train\); give one",
        ),
        (lambda: ff.FederatedData.split(X, Y, clients=0), "data.clients must be a whole number of at least 1, got 0"),
        (lambda: ff.FederatedData.split(X, Y, clients=999), "data.clients = 999 is more than the 240 training samples"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, seed=-1), "data.seed must be a whole number of at least 0"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, partition="iid"), r"partition must be a scheme such as"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, partition=ff.Domain()), "needs data with domains"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, test=1.5), r"test must be a share in \(0, 0.9\]"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, test=True), r"test must be a share in \(0, 0.9\]"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, test=float("nan")), r"test must be a share in \(0, 0.9\]"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, test=0.001), "leaves none for test or for training"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, test="test"), "test must be a pair"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, test=(X[:, :2], Y)), r"test has samples of shape \(2,\)"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, validation=2), r"data.validation must be a number in"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, augment="flip"), "data.augment must be one of 'none', "),
        (lambda: ff.FederatedData.split(X, Y, clients=2, augment="crop-flip"), "goes with pictures; data has none"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, domain=["a"]), "one name or number for each of the 240"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, user=[["a", "b"]] * N), "one name or number for each of the"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, domain=["a\x1b[2J"] * N), r"a domain is named 'a\\\\x1b"),
        (lambda: ff.FederatedData.split(X, Y, clients=2, classes=3), r"training label 3 of sample 3 is outside 0\.\.2"),
        (lambda: ff.FederatedData.split(X * np.nan, Y, clients=2), "NaN or infinite"),
        (lambda: ff.FederatedData.from_clients([(X, Y)], validation=1.0), r"data.validation must be a number in"),
        (lambda: ff.FederatedData.from_clients([(X, Y)], augment="crop-flip"), "goes with pictures; data has none"),
        (lambda: ff.FederatedData.from_clients([(X[:1], Y[:1])], validation=0.2), "needs a client with two"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_labels_of_other_tasks_are_kept_as_numbers() -> None:
    one = ff.FederatedData.split(X, Y, clients=3, task="regression", test=0.25)
    assert (one.y.shape, one.y.dtype, one.classes) == ((180, 1), torch.get_default_dtype(), 1)
    assert torch.equal(one.y[:, 0], (one.x[:, 0] / 3).long() % 4)
    assert one.counts().tolist() == one.sizes[:, None].tolist()
    labels = np.eye(4, dtype=int)[Y]
    several = ff.FederatedData.from_clients([(X[:9], labels[:9]), (X[9:], labels[9:])], task="multi-label")
    assert (several.classes, several.counts().sum(1).tolist()) == (4, [9, N - 9])
    assert repr(several) == "FederatedData(data: 240 samples of 3 with 4 labels, 2 clients, given)"


def test_partitions_by_class_are_those_that_look_at_labels() -> None:
    assert not all_partitions()["iid"]().needs_classes
    for scheme in all_partitions().values():
        if not scheme().needs_classes:
            ff.FederatedData.split(X, X, clients=2, partition=scheme(), task="regression", **GROUPS)
        else:
            with pytest.raises(InputError, match="splits by class, and the labels are those of regression"):
                ff.FederatedData.split(X, X, clients=2, partition=scheme(), task="regression", **GROUPS)


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (Y, "regresion", "task = 'regresion' is unknown; known are .*; did you mean regression"),
        (Y, None, "task = None is unknown"),
        (Y, "multi-label", r"y of shape \(240,\); expected \(n, ...\) and \(n, labels\)"),
        (np.stack([Y, Y], 1), "multi-label", "sample 2 has a label that is not 0 or 1"),
        (Y + np.nan, "regression", r"sample 0 has a label that is not finite \(240 of 240"),
        (np.zeros((N, 2, 2)), "regression", r"expected \(n, ...\) and \(n,\) or \(n, k\)"),
        (Y + 0.5, "classification", "not whole numbers; numbers to predict need task='regression'"),
        (np.array(["a"] * N), "regression", "names of classes go with classification"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_one_line(y: np.ndarray, task, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        ff.FederatedData.split(X, y, clients=2, task=task)
    assert "\n" not in str(error.value)


def test_clients_with_other_numbers_of_labels_are_one_line() -> None:
    with pytest.raises(InputError, match=r"client 1 has labels of shape \(2,\), client 0 of shape \(1,\)"):
        ff.FederatedData.from_clients([(X, X[:, :1]), (X, X[:, :2])], task="regression")

"""The same numbers and labels by every door: the same bits reach a model, or all doors refuse them.

Expected values come from NumPy on the arrays that are given, not from a door.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data.labels import Labelling
from fedflat.data.loading import labelled
from fedflat.data.own_data import own_dataset
from fedflat.data.preparation import Preparation
from fedflat.data.readers.array_files import read_npz
from fedflat.data.sample_kind import SampleKind
from fedflat.experiments.config_errors import validated
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import Study, own_samples, stored
from support.effort import chosen
from support.files import refused

N = 12
BASE = np.random.default_rng(0).integers(0, 100, (N, 2, 3))
Y = np.arange(N) % 3
TEXTS = np.array(["no", "maybe", "yes"])[Y]  # in the order of the names: maybe, no, yes
Inputs = tuple[np.ndarray, np.ndarray, tuple[str, ...]]


class Table:
    """A DataFrame or a Series as far as the package looks at one: `to_numpy`, `columns`, `index`."""

    def __init__(self, values: np.ndarray, index: list[int] | None = None, columns: str | None = None) -> None:
        self._values, self.index = values, list(range(len(values))) if index is None else index
        if values.ndim > 1:
            self.columns = list(range(values.shape[1]) if columns is None else columns)

    def __len__(self) -> int:
        return len(self._values)

    def to_numpy(self) -> np.ndarray:
        return self._values


class Rows:
    """A dataset with columns."""

    def __init__(self, x: Any, y: Any) -> None:
        self.rows, self.column_names = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)], ["x", "y"]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def seen(data: ff.FederatedData) -> Inputs:
    """What reaches a model, in the order of the samples, the labels, and the names of classes."""
    return data.inputs(torch.arange(len(data.y))).numpy(), data.y.numpy(), data.class_names


def by_split(x: Any, y: Any, folder: Path, **how: Any) -> Inputs:
    return seen(ff.FederatedData.split(x, y, clients=2, **how))


def by_clients(x: Any, y: Any, folder: Path, **how: Any) -> Inputs:
    half = len(x) // 2
    return seen(ff.FederatedData.from_clients([(x[:half], y[:half]), (x[half:], y[half:])], **how))


def by_items(x: Any, y: Any, folder: Path, **how: Any) -> Inputs:
    return seen(ff.FederatedData.split(list(zip(x, y, strict=True)), clients=2, **how))


def by_columns(x: Any, y: Any, folder: Path, **how: Any) -> Inputs:
    return seen(ff.FederatedData.split(Rows(x, y), columns=("x", "y"), clients=2, **how))


def by_npz(x: Any, y: Any, folder: Path, **how: Any) -> Inputs:
    np.savez(folder / "train.npz", x=x, y=y)
    np.savez(folder / "test.npz", x=x, y=y)
    return seen(ff.data.load("npz", clients=2, data_dir=str(folder), **how))


def by_function(x: Any, y: Any, folder: Path, **how: Any) -> Inputs:
    read = own_dataset(f"{folder}/own.py:data", lambda: ((x, y), (x, y))).read
    whole = labelled(read(), "classification", "own", Labelling(**how))
    return Preparation()(whole.train.x).numpy(), whole.train.y.numpy(), whole.class_names


def by_node(x: Any, y: Any, folder: Path, **how: Any) -> Inputs:
    """A federation's client, whose study states the kind of numbers and the names of classes."""
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    numbers = "pixels" if x.dtype == np.uint8 else "tokens" if x.dtype.kind in "iu" else "floats"
    names = sorted(set(y.tolist()))
    data = how | ({"class_names": list(map(str, names))} if how or y.dtype.kind == "U" else {})
    settings = RunSettings(clients=2, shape="x".join(map(str, x.shape[1:])), classes=len(names), numbers=numbers)
    study = Study(validated(RunSpec, {"data": data}), settings)
    return seen(own_samples(study, stored({"data": str(folder)}), 0))


DOORS: dict[str, Callable[..., Inputs]] = {
    "split": by_split, "clients": by_clients, "items": by_items, "columns": by_columns, "npz": by_npz,
    "function": by_function, "node": by_node,
}  # fmt: skip
KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "uint8": lambda x: x.astype(np.uint8), "int8": lambda x: x.astype(np.int8), "int64": lambda x: x,
    "uint16": lambda x: x.astype(np.uint16), "big-endian int32": lambda x: x.astype(">i4"),
    "bool": lambda x: x > 50, "float16": lambda x: (x / 8).astype(np.float16), "float64": lambda x: x / 7,
    "big-endian float32": lambda x: (x / 7).astype(">f4"), "columns first": lambda x: np.asfortranarray(x / 7),
    "flipped": lambda x: (x / 7)[::-1], "strided": lambda x: np.repeat(x / 7, 2, axis=2)[:, :, ::2],
    "read-only": lambda x: np.frombuffer((x / 7).tobytes()).reshape(x.shape),
}  # fmt: skip


def expected(x: np.ndarray) -> np.ndarray:
    """The rule of docs/own_data.md."""
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    if x.dtype.kind in "iu":
        return x.astype(np.int64)
    return x.astype(np.float64 if x.dtype.itemsize == 8 else np.float32)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "kind", chosen([kind for kind in KINDS if kind not in ("int8", "columns first", "strided")], [*KINDS])
)
def test_each_kind_of_number_reaches_a_model_alike_by_every_door(kind: str, door: str, tmp_path: Path) -> None:
    x = KINDS[kind](BASE)
    found, y, names = DOORS[door](x, Y, tmp_path)
    assert found.dtype == expected(x).dtype
    assert np.array_equal(found, expected(x))
    assert (y.tolist(), names) == (Y.tolist(), ())


LABELS: dict[str, tuple[np.ndarray, dict[str, str], tuple[str, ...]]] = {
    "texts": (TEXTS, {}, ("maybe", "no", "yes")),
    "from one": (Y + 1, {"labels": "names"}, ("1", "2", "3")),
    "gaps, below zero, huge": (np.array([2**40, -1, 985])[Y], {"labels": "names"}, ("-1", "985", str(2**40))),
    "whole floats": (Y.astype(np.float32), {}, ()),
    "truth values": (Y > 0, {}, ()),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", LABELS)
def test_each_kind_of_label_is_the_same_class_by_every_door(kind: str, door: str, tmp_path: Path) -> None:
    labels, how, names = LABELS[kind]
    _, y, found = DOORS[door](BASE / 7, labels, tmp_path, **how)
    assert found == names
    assert y.tolist() == (np.unique(labels, return_inverse=True)[1]).tolist()  # in the order of numbers or names
    assert not names or [names[i] for i in y] == labels.astype(str).tolist()


BAD: dict[str, tuple[Any, Any, str]] = {
    "complex": (BASE.astype(np.complex64), Y, "x has complex numbers"),
    "dates": (BASE.astype("M8[s]"), Y, "x has dates"),
    "texts": (BASE.astype(str), Y, "x has texts"),
    "fields": (np.zeros((N, 2), [("a", "f4")]), Y, "x has records"),
    "beyond int64": (BASE.astype(np.uint64) + np.uint64(2**63), Y, "beyond int64"),
    "no numbers": (BASE[:, :0], Y, "samples without numbers"),
    "half labels": (BASE / 7, Y + 0.5, "not whole numbers"),
    "labels that are dates": (BASE / 7, Y.astype("M8[s]"), "dates"),
    "an empty text": (BASE / 7, np.where(Y == 1, "", "a"), "a label is missing: ''"),
    "a text of nothing": (BASE / 7, np.where(Y == 2, "nan", "a"), "a label is missing: 'nan'"),
    "spaces": (BASE / 7, np.where(Y == 1, "a ", "a"), "the same label is named 'a' and 'a '"),
    "a line": (BASE / 7, np.where(Y == 1, "a\nb", "a"), "are printable"),
    "below zero": (BASE / 7, Y - 1, "is negative"),
    "beyond any table": (BASE / 7, Y + 2**40, "at most 100,000 are taken"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("door", ["split", "clients", "npz", "function", "node"])
@pytest.mark.parametrize("what", BAD)
def test_what_has_no_meaning_is_one_line_at_every_door(what: str, door: str, tmp_path: Path) -> None:
    x, y, problem = BAD[what]
    if door == "node" and y.dtype.kind == "U":
        problem = problem.replace("label", "class") if what == "a line" else problem
    if door == "node" and what in ("below zero", "beyond any table"):
        problem = "is negative" if what == "below zero" else "outside 0..2"  # the study states the classes
    if door in ("npz",) and what in ("complex", "dates", "fields", "labels that are dates"):
        problem = "expected numbers"  # the reader refuses the type before it looks at a value
    with pytest.raises(InputError) as error:
        DOORS[door](x, y, tmp_path)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


CLIENTS, SPLIT = ff.FederatedData.from_clients, ff.FederatedData.split


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: CLIENTS([(BASE.astype(np.uint8), Y), (BASE / 255, Y)]), "client 1 has floats, client 0 has pixels"),
        (lambda: CLIENTS([(BASE / 7, Y), (BASE, Y)]), "client 1 has tokens, client 0 has floats"),
        (lambda: CLIENTS([(BASE / 7, Y)], test=(BASE.astype(np.uint8), Y)), "test has pixels, client 0 has floats"),
        (lambda: SPLIT(BASE / 7, Y, clients=2, test=(BASE, Y)), "test has tokens, training has floats"),
        (lambda: SPLIT([(BASE[0], 0), (BASE[1] / 7, 1), (BASE[2], 2)], clients=1), "sample 1 has floats"),
        (lambda: CLIENTS([(BASE, TEXTS), (BASE, Y)]), "client 1 has labels that are numbers, client 0 texts"),
        (lambda: CLIENTS([(BASE, Y)], test=(BASE, Y + 1)), "class 3 has samples for test and none for training"),
        (lambda: CLIENTS([(BASE, TEXTS)], test=(BASE, TEXTS + ".")), "test has the label 'maybe.'"),
        (lambda: CLIENTS([(BASE, [*TEXTS[:-1], None])]), "of sample 11 is missing or no name: None"),
        (lambda: CLIENTS([(BASE, [*TEXTS[:-1], 3])]), "texts and numbers are mixed"),
        (lambda: CLIENTS([(BASE, TEXTS)], class_names=["maybe", "no"]), "'yes', which is none of class_names"),
        (lambda: CLIENTS([(BASE, Y)], class_names=["a", "b", "a"]), "the same class is named 'a' and 'a'"),
        (lambda: CLIENTS([(np.ma.masked_greater(BASE, 50), Y)]), "masked values"),
        (lambda: CLIENTS([(torch.tensor(BASE).to_sparse(), Y)]), "sparse"),
        (lambda: CLIENTS([DataLoader(TensorDataset(torch.tensor(BASE), torch.tensor(Y)))]), "is a DataLoader"),
        (lambda: CLIENTS([{"x": BASE, "y": Y}]), "got dict"),
        (lambda: CLIENTS([(None, Y)]), "has None of type NoneType in sample 0"),
        (lambda: CLIENTS([(BASE, Y)], classes=0), "classes must be a whole number of at least 1"),
        (lambda: CLIENTS([(BASE, Y)], class_names="abc"), "data.class_names must be a list of texts"),
        (lambda: CLIENTS([iter([(BASE[0], 0)])]), "a dataset with a length"),
        (lambda: CLIENTS([Table(BASE[:, 0])]), "is a table and no y"),
        (lambda: CLIENTS([(Table(BASE[:, 0]), Table(Y, list(range(N))[::-1]))]), "the same index in another order"),
        (lambda: CLIENTS([Rows(BASE, Y)]), "say which columns of client 0"),
    ],
)  # fmt: skip
def test_parts_that_do_not_match_are_one_line(make: Callable[[], Any], problem: str) -> None:
    with refused(problem):
        make()


@pytest.mark.parametrize("users", [[*"ab" * 5, "a", None], [*"ab" * 5, "a", float("nan")], np.r_[Y[:-1], np.nan]])
def test_a_missing_user_is_no_user(users: Any) -> None:
    with refused("user of sample 11 is missing"):
        ff.FederatedData.split(BASE, Y, clients=2, user=users)


def test_clients_may_be_tables_datasets_and_lists_of_samples() -> None:
    x, y = BASE[:, 0] / 7, Y
    pairs = TensorDataset(torch.tensor(x), torch.tensor(y))
    kinds = [
        (Table(x), Table(y)), pairs, Subset(pairs, list(range(N))), list(zip(x, y, strict=True)),
        (x.tolist(), y.tolist()), (list(torch.tensor(x)), list(torch.tensor(y))), [x, y],
        (Table(x, list(range(N))[::-1]), y),
    ]  # fmt: skip
    data = CLIENTS(kinds, test=pairs)
    for client in range(len(kinds)):
        own_x, own_y = data.client(client)
        assert np.array_equal(own_x, x)
        assert np.array_equal(own_y, y)
    two = CLIENTS([[(x[0], 0), (x[1], 1)]])
    assert (two.shape, two.y.tolist()) == ((3,), [0, 1])


def test_columns_of_a_table_are_quantities() -> None:
    data = ff.FederatedData.split(Table(BASE[:, 0]), Table(TEXTS), clients=2)
    assert data.x.dtype == torch.float64
    assert np.array_equal(data.x, BASE[:, 0])
    model = torch.nn.Linear(3, 3)
    ff.Simulation(model, data, ff.methods.FedAvg(), ff.Client(lr=1e-3), rounds=1, executor="sequential").run()


@pytest.mark.parametrize("model", ["mlp", torch.nn.Linear(3, 3)])
def test_whole_numbers_for_a_model_of_floats_are_one_line_that_says_so(model: Any) -> None:
    data = ff.FederatedData.split(BASE[:, 0], Y, clients=2)
    with refused("type torch.int64: it takes floats, and whole numbers are tokens"):
        ff.Simulation(model, data, ff.methods.FedAvg(), rounds=1)


def test_a_model_with_an_embedding_takes_whole_numbers() -> None:
    data = ff.FederatedData.split(BASE[:, 0], Y, clients=2)
    layers = (torch.nn.Embedding(100, 2), torch.nn.Flatten(), torch.nn.Linear(6, 3))
    ff.Simulation(torch.nn.Sequential(*layers), data, ff.methods.FedAvg(), rounds=1, executor="sequential").run()
    with refused("index out of range"):  # not taken for a model of floats
        ff.Simulation(torch.nn.Sequential(torch.nn.Embedding(1, 2), *layers[1:]), data, ff.methods.FedAvg(), rounds=1)


@pytest.mark.parametrize(("labels", "missing"), [([1, 2, 3], 1), ([10, 985, 10985], 10983), ([0, 2, 3], 1)])
def test_classes_without_a_sample_are_said(labels: list[int], missing: int) -> None:
    with pytest.warns(UserWarning, match=f"leaves {missing} of {max(labels) + 1} classes without a sample"):
        assert ff.FederatedData.split(BASE, np.array(labels)[Y], clients=2).classes == max(labels) + 1
    stated = {"class_names": list(map(str, range(4)))} if max(labels) < 4 else {"classes": 20_000}
    assert ff.FederatedData.split(BASE, np.array(labels)[Y], clients=2, **stated).classes in (4, 20_000)


def test_stated_names_are_the_order_of_the_classes() -> None:
    names = ["yes", "no", "maybe", "never"]
    data = CLIENTS([(BASE, TEXTS)], test=(BASE[:1], ["never"]), class_names=names)
    assert (data.classes, data.class_names) == (4, tuple(names))
    assert [names[i] for i in data.y] == TEXTS.tolist()
    assert data.test[1].tolist() == [3]


def test_a_node_that_names_classes_needs_a_study_that_does(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", BASE / 7)
    np.save(tmp_path / "y.npy", TEXTS)
    study = Study(RunSpec(), RunSettings(clients=2, shape="2x3", classes=3))
    with refused("set data.class_names in the study"):
        own_samples(study, stored({"data": str(tmp_path)}), 0)
    with refused("data.labels = 'names' needs data.class_names in a federation"):
        Study(validated(RunSpec, {"data": {"labels": "names"}}), study.settings)
    with refused("classes is 3, and data.class_names has 2 names"):
        Study(validated(RunSpec, {"data": {"class_names": ["no", "yes"]}}), study.settings)
    np.save(tmp_path / "y.npy", Y)
    np.save(tmp_path / "x.npy", BASE.astype(np.uint8))
    with refused("samples are pixels (uint8), and the study's floats"):
        own_samples(study, stored({"data": str(tmp_path)}), 0)


@pytest.mark.parametrize("other", ["cba", "abd"])
def test_tables_have_their_columns_in_one_order(other: str) -> None:
    """A column would be trained on as one quantity and tested as another. Columns without names are taken as is."""
    x, named = BASE[:, 0], Table(BASE[:, 0], columns="abc")
    problem = f"has the columns {', '.join(other)}"
    with refused(f"client 1 {problem}, client 0 a, b, c; give all the same in one order"):
        CLIENTS([(named, Y), (Table(x, columns=other), Y)])
    with refused(f"test {problem}"):
        CLIENTS([(x, Y), (named, Y)], test=(Table(x, columns=other), Y))
    with refused(f"test {problem}"):
        ff.FederatedData.split(named, Y, clients=2, test=(Table(x, columns=other), Y))
    with refused(f"test {problem}"):
        own_dataset(other, lambda: ((named, Y), (Table(x, columns=other), Y))).read()
    data = CLIENTS([(named, Y), (Table(x), Y), (x.astype(float), Y)])
    assert torch.equal(data.client(0)[0], data.client(1)[0])


def test_samples_to_predict_may_be_a_table() -> None:
    kind = SampleKind.of(CLIENTS([(Table(BASE[:, 0]), Y)]))
    assert kind.stored(Table(BASE[:, 0])).tolist() == BASE[:, 0].tolist()
    with refused("expected"):
        kind.stored(Table(BASE[:, 0, :2]))


def test_texts_in_npz_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=TEXTS, y=Y)
    with refused("x has texts; give token numbers, or texts in a parquet file"):
        read_npz(tmp_path / "train.npz")


def test_frames_of_pandas_are_tables() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(BASE[:, 0], columns=["a", "b", "c"]).assign(label=TEXTS)
    shuffled = frame.sample(frac=1, random_state=0)
    data = CLIENTS(
        [(shuffled[["a", "b", "c"]], shuffled["label"]), (frame[["a", "b", "c"]], frame["label"].astype("category"))]
    )
    assert np.array_equal(data.client(0)[0], shuffled[["a", "b", "c"]].to_numpy(float))
    assert [data.class_names[i] for i in data.client(1)[1]] == TEXTS.tolist()
    with refused("the same index in another order"):
        CLIENTS([(frame[["a", "b", "c"]], shuffled["label"])])
    with refused("in sample 0"):
        CLIENTS([(frame, frame["label"])])
    with refused("is missing"):
        CLIENTS([(frame[["a"]], frame["label"].where(frame["a"] > 50))])

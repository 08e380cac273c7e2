"""Data sets of a user's own in a folder. Hostile files are in `support.hostile_data`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.data import prepare
from fedflat.data.conversion import words
from fedflat.data.loading import described
from fedflat.data.sources import is_folder, source_names
from support.files import encoded, picture_column, random_pictures, refused, write_parquet

N, M = 60, 20
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N + M, 2, 3)).astype(np.float32), np.arange(N + M) % 5
SITES = np.array(["north", "south", "east"])[np.arange(N + M) % 3]
PEOPLE = np.arange(N + M) // 4


def write_npz(folder: Path, x: np.ndarray = X, y: np.ndarray = Y, test: bool = True, **groups: np.ndarray) -> Path:
    np.savez(folder / "train.npz", x=x[:N], y=y[:N], **{name: some[:N] for name, some in groups.items()})
    if test:
        some = {name: column[N:] for name, column in groups.items()}
        np.savez_compressed(folder / "test.npz", x=x[N:], y=y[N:], **some)
    return folder


def load(name: str, folder: Path, clients: int = 3, **options) -> ff.FederatedData:
    return ff.data.load(name, clients=clients, data_dir=str(folder), **options)


def test_arrays_come_back_as_they_were_written(tmp_path: Path) -> None:
    data = load("npz", write_npz(tmp_path))
    assert torch.equal(data.x, torch.from_numpy(X[:N]))
    assert torch.equal(data.y, torch.from_numpy(Y[:N]))
    assert torch.equal(data.test[0], torch.from_numpy(X[N:]))
    assert torch.equal(data.test[1], torch.from_numpy(Y[N:]))
    assert (data.classes, data.shape, data.clients) == (5, (2, 3), 3)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (np.float64, torch.float64), (np.float16, torch.float32), (">f4", torch.float32), (np.int16, torch.int64),
        (np.uint8, torch.uint8), (np.bool_, torch.float32), (np.longdouble, torch.float64),
    ],
)  # fmt: skip
def test_the_kind_of_number_is_kept_where_torch_has_it(tmp_path: Path, kind, kept: torch.dtype) -> None:
    x = (np.abs(X) * 50).astype(kind)
    data = load("npz", write_npz(tmp_path, x=np.asfortranarray(x)))
    assert data.x.dtype == kept
    assert np.array_equal(data.x.numpy(), x[:N].astype(data.x.numpy().dtype))


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float32, np.bool_])
def test_labels_may_be_of_any_kind_of_whole_number(tmp_path: Path, kind) -> None:
    y = (Y % 2).astype(kind)
    assert load("npz", write_npz(tmp_path, y=y)).y.tolist() == (Y[:N] % 2).tolist()


def test_domains_and_users_split_and_hold_out(tmp_path: Path) -> None:
    write_npz(tmp_path, domain=SITES, user=PEOPLE)
    by_user = load("npz", tmp_path, clients=N // 4, partition=ff.Natural())
    assert by_user.sizes.tolist() == [4] * (N // 4)
    held_out = load("npz", tmp_path, clients=2, partition=ff.Domain(), test_domain="south")
    assert len(held_out.test[1]) == (SITES == "south").sum()
    whole = torch.from_numpy(X[SITES == "south"])
    assert torch.equal(held_out.test[0], whole)


def test_a_shared_test_set_needs_no_users(tmp_path: Path) -> None:
    write_npz(tmp_path, user=PEOPLE, domain=SITES)
    np.savez(tmp_path / "test.npz", x=X[N:], y=Y[N:])
    by_user = load("npz", tmp_path, clients=N // 4, partition=ff.Natural())
    assert by_user.sizes.tolist() == [4] * (N // 4)
    assert torch.equal(by_user.test[0], torch.from_numpy(X[N:]))
    assert load("npz", tmp_path, partition=ff.Domain()).clients == 3
    with refused("the test samples have no domain"):
        load("npz", tmp_path, test_domain="south")


def test_users_that_are_numbers_are_in_their_order_by_every_door(tmp_path: Path) -> None:
    user = np.arange(N + M) % 12  # as texts, 10 comes before 2
    found = load("npz", write_npz(tmp_path, user=user), clients=5, partition=ff.Natural())
    own = ff.FederatedData.split(X[:N], Y[:N], clients=5, partition=ff.Natural(), user=user[:N])
    assert found.partition_hash() == own.partition_hash()


def test_users_that_are_texts_in_one_file_and_numbers_in_another_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=X, y=Y, user=PEOPLE)
    np.savez(tmp_path / "test.npz", x=X, y=Y, user=PEOPLE.astype(str))
    with refused("user has texts in one file and numbers in another"):
        load("npz", tmp_path)


def test_users_stay_with_their_samples_when_a_domain_is_held_out(tmp_path: Path) -> None:
    write_npz(tmp_path, domain=SITES, user=np.arange(N + M) % 2)
    data = load("npz", tmp_path, clients=2, partition=ff.Natural(), test_domain="south")
    assert data.sizes.sum() == len(data.y) == (SITES != "south").sum()


@pytest.mark.parametrize(("train", "test"), [(np.float32, np.float64), (np.float16, np.float32)])
def test_widths_of_floats_may_differ_between_files_and_kinds_may_not(tmp_path: Path, train, test) -> None:
    np.savez(tmp_path / "train.npz", x=X.astype(train), y=Y)
    np.savez(tmp_path / "test.npz", x=X.astype(test), y=Y)
    data = load("npz", tmp_path)
    assert np.array_equal(data.x, X.astype(train).astype(data.x.numpy().dtype))
    assert np.array_equal(data.test[0], X.astype(test).astype(data.x.numpy().dtype))
    np.savez(tmp_path / "test.npz", x=(X * 9).astype(np.uint8), y=Y)
    with refused("has pixels, ", "train.npz has floats"):
        load("npz", tmp_path)


def parquet_of_texts(folder: Path, labels: list, test_labels: list, names: list[str] | None = None) -> Path:
    described = {} if names is None else {"label": names}
    for part, some in (("train", labels), ("test", test_labels)):
        write_parquet(folder / f"{part}.parquet", {"text": ["a b"] * len(some), "label": some}, described)
    return folder


def test_texts_in_a_column_of_labels_name_the_classes(tmp_path: Path) -> None:
    data = load("parquet", parquet_of_texts(tmp_path, ["spam", "ham", "spam"], ["ham"]), clients=1)
    assert (data.class_names, data.y.tolist(), data.test[1].tolist()) == (("ham", "spam"), [1, 0, 1], [0])
    assert described("parquet", str(tmp_path)).classes == 2
    with refused("test has the label 'ham.', which is none of the training labels"):
        load("parquet", parquet_of_texts(tmp_path, ["spam", "ham", "spam"], ["ham."]), clients=1)
    whole = load("parquet", tmp_path, clients=1, class_names=("spam", "ham", "ham.", "eggs"))
    assert (whole.classes, whole.y.tolist(), whole.test[1].tolist()) == (4, [0, 1, 0], [2])
    with refused("test has labels that are numbers, train texts"):
        load("parquet", parquet_of_texts(tmp_path, ["spam"] * 3, [0]), clients=1)


def test_names_that_a_file_declares_are_all_classes(tmp_path: Path) -> None:
    data = load("parquet", parquet_of_texts(tmp_path, [0, 2, 0], [2], ["no", "maybe", "yes"]), clients=1)
    assert (data.classes, data.class_names, data.y.tolist()) == (3, ("no", "maybe", "yes"), [0, 2, 0])
    with refused("parquet declares its 3 classes"):
        load("parquet", tmp_path, clients=1, labels="names")


def test_what_labels_mean_is_part_of_the_contents(tmp_path: Path) -> None:
    write_npz(tmp_path, y=Y % 2 * 7)
    with pytest.warns(UserWarning, match="leaves 6 of 8 classes without a sample"):
        plain = load("npz", tmp_path)
    named = load("npz", tmp_path, labels="names")
    assert (plain.classes, named.classes, named.class_names) == (8, 2, ("0", "7"))
    assert np.array_equal(named.y, Y[:N] % 2)
    assert plain.contents_hash() != named.contents_hash()
    with refused("data.labels and data.class_names say what labels of your own mean; digits declares its 10"):
        ff.data.load("digits", clients=2, labels="names")


def test_a_tenth_of_every_users_samples_is_the_test_set_if_there_is_no_other(tmp_path: Path) -> None:
    data = load("npz", write_npz(tmp_path, test=False, user=np.arange(N + M) % 3))
    assert (len(data.y), len(data.test[1])) == (N - 6, 6)


def test_changed_files_are_read_anew(tmp_path: Path) -> None:
    before = load("npz", write_npz(tmp_path)).contents_hash()
    again = load("npz", tmp_path).contents_hash()
    assert before == again != load("npz", write_npz(tmp_path, x=X + 1)).contents_hash()


def test_two_folders_are_two_sets(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one, other = load("npz", write_npz(tmp_path / "one")), load("npz", write_npz(tmp_path / "other", x=-X))
    assert torch.equal(one.x, -other.x)


def pictures(folder: Path, size: tuple[int, int] = (8, 8), channels: int = 3) -> list[np.ndarray]:
    made = [picture[:, : size[0], : size[1]] for picture in random_pictures(N, channels, max(size))]
    columns = {"image": picture_column([encoded(p) for p in made]), "label": Y[:N], "domain": list(SITES[:N])}
    write_parquet(folder / "train-00000-of-00001.parquet", columns)
    write_parquet(folder / "test.parquet", {name: column[:M] for name, column in columns.items()})
    return made


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_come_back_as_they_were_encoded(tmp_path: Path, channels: int) -> None:
    made = pictures(tmp_path, channels=channels)
    data = load("parquet", tmp_path, partition=ff.Domain())
    assert np.array_equal(data.x.numpy(), np.stack(made))
    assert (data.classes, len(data.test[1])) == (5, M)
    assert data.inputs(torch.arange(2)).max() <= 1


def test_photographs_are_resized_when_asked(tmp_path: Path) -> None:
    pictures(tmp_path, size=(20, 30))
    assert load("parquet", tmp_path, image_size=16).shape == (3, 16, 16)
    with refused("has 30 x 20 pixels; set data.image_size"):
        load("parquet", tmp_path)


def test_texts_become_token_numbers(tmp_path: Path) -> None:
    texts = [f"good day number {i}" if i % 2 else "bad bad night" for i in range(N)]
    write_parquet(tmp_path / "train.parquet", {"text": texts, "label": Y[:N] % 2})
    write_parquet(tmp_path / "test.parquet", {"text": texts[:M], "label": Y[:M] % 2})
    data = load("parquet", tmp_path)
    row = [data.vocabulary[token] for token in data.x[3] if token]
    assert row == words(texts[3])
    assert described("parquet", str(tmp_path)).vocabulary_size == len(data.vocabulary)


def test_a_description_is_that_of_the_files(tmp_path: Path) -> None:
    found = described("npz", str(write_npz(tmp_path, domain=SITES)))
    assert (found.classes, found.sample_shape(), dict(found.sizes)) == (5, (2, 3), {"train": N, "test": M})
    assert found.domains == ("east", "north", "south")
    assert [name for name in source_names() if is_folder(name)] == [
        "csv", "folder", "jsonl", "leaf", "npz", "parquet",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("write", "name", "options", "named"),
    [
        (lambda f: None, "npz", {}, "it should hold train.npz"),
        (lambda f: None, "parquet", {}, "it should hold train-*.parquet"),
        (lambda f: np.savez(f / "test.npz", x=X, y=Y), "npz", {}, "it should hold train.npz"),
        (lambda f: write_npz(f, test=False), "npz", {}, "no test part, and no domain or user"),
        (write_npz, "npz", {"image_size": 32}, "data.image_size = 32 goes with photographs"),
        (write_npz, "npz", {"augment": "crop-flip"}, "goes with pictures; npz has none"),
        (write_npz, "npz", {"partition": ff.Domain()}, "needs data with domains"),
        (lambda f: write_npz(f, y=Y + 0.5), "npz", {}, "need task='regression' (--loss regression)"),
        (lambda f: write_npz(f, x=X[:, 0, 0]), "npz", {}, "x has shape (60,), expected (n, ...)"),
        (
            lambda f: write_npz(f, x=np.zeros((N + M, 8, 8, 3), np.uint8)), "npz", {},
            "x has shape (60, 8, 8, 3); pictures are (n, channels, height, width)",
        ),
        (lambda f: np.save(f / "train.npz.npy", X), "npz", {}, "it should hold train.npz"),
        (lambda f: pictures(f, channels=3), "parquet", {"image_size": 4}, "data.image_size must be a whole number"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path: Path, write, name: str, options: dict, named: str) -> None:
    write(tmp_path)
    with refused(named):
        load(name, tmp_path, **options)


def test_nan_in_a_file_is_refused(tmp_path: Path) -> None:
    with refused("NaN or infinite"):
        load("npz", write_npz(tmp_path, x=np.where(X > 2, np.nan, X)))


def test_a_folder_of_ones_own_is_not_on_the_hub(tmp_path: Path) -> None:
    with refused("npz is not on the hub; train.npz"):
        prepare("npz", str(tmp_path), hub=True)


def test_a_folder_may_hold_numbers_to_predict_or_several_labels(tmp_path: Path) -> None:
    write_npz(tmp_path, y=np.round(X[:, 0, :2].astype(float) * 3))  # whole numbers, some below zero
    numbers = load("npz", tmp_path, task="regression")
    assert (numbers.task, numbers.classes, numbers.y.shape) == ("regression", 2, (N, 2))
    assert np.array_equal(numbers.y.numpy(), np.round(X[:N, 0, :2].astype(float) * 3))
    assert described("npz", str(tmp_path), task="regression").classes == 2
    with refused("expected (n, ...) and (n,)"):
        load("npz", tmp_path)
    with refused("splits by class"):
        load("npz", tmp_path, task="regression", partition=ff.Dirichlet(0.1))
    write_npz(tmp_path, y=(X[:, 0] > 0).astype(int))
    assert torch.equal(load("npz", tmp_path, task="multi-label").y, torch.from_numpy((X[:N, 0] > 0).astype(float)))


def test_one_whole_float_for_each_sample_is_a_class_or_a_number_as_the_task_says(tmp_path: Path) -> None:
    write_npz(tmp_path, y=Y.astype(float))
    assert (load("npz", tmp_path).classes, load("npz", tmp_path).y.dtype) == (5, torch.int64)
    assert (load("npz", tmp_path, task="regression").classes, described("npz", str(tmp_path)).classes) == (1, 5)


def test_classes_are_no_numbers_to_predict(tmp_path: Path) -> None:
    with refused("data.name = 'npz' has classes, and regression needs other labels: floats"):
        load("npz", write_npz(tmp_path), task="regression")
    with refused("data.name = 'digits' has classes"):
        ff.data.load("digits", clients=2, task="regression")

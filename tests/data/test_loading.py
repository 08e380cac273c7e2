"""Sets by name from small files in the layouts that they are published in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.data import dataset as module
from fedflat.data.conversion import SampleFormat
from fedflat.data.medical_sets import MEDICAL_SETS
from fedflat.data.partition import Domain, Natural
from fedflat.data.sources import is_folder, known_source, source, source_names
from support.files import (
    encoded,
    idx,
    pickled,
    picture_column,
    random_labels,
    random_pictures,
    refused,
    write_files,
    write_parquet,
    write_pictures,
    write_tar,
    write_zip,
    zipped,
)

N, M = 12, 5  # of the training and the test part of all small sets below
PARTS = (("train", N, 0), ("test", M, 1))
FOLDER_OF_PARQUET = {"mnist": "mnist", "cifar10": "plain_text", "cifar100": "cifar100", "office_home": "data"}


def load(name: str, folder: Path, **options) -> ff.FederatedData:
    return ff.data.load(name, **({"clients": 2, "data_dir": str(folder), "partial": True} | options))


def grey(folder: Path, prefix: str = "", test: str = "t10k", classes: int = 10, transposed: bool = False) -> None:
    """The four idx files."""
    files = {}
    for part, n, seed in PARTS:
        pictures = random_pictures(n, seed=seed)[:, 0]
        stem = f"{prefix}{test if part == 'test' else part}"
        files[f"{stem}-images-idx3-ubyte.gz"] = zipped(idx(pictures.transpose(0, 2, 1) if transposed else pictures))
        files[f"{stem}-labels-idx1-ubyte.gz"] = zipped(idx(random_labels(n, classes, seed)))
    write_files(folder, files)


def hub(folder: Path, name: str, image: str = "image", label: str = "label", size: int = 28) -> None:
    """Both parts in parquet files."""
    known = source(name)
    for part, n, seed in PARTS:
        pictures = random_pictures(n, known.picture.channels, size, seed)
        columns = {image: picture_column(list(pictures)), label: random_labels(n, known.classes, seed)}
        if label == "fine_label":
            columns["coarse_label"] = random_labels(n, 20, seed + 9)
        write_parquet(folder / FOLDER_OF_PARQUET.get(name, "") / f"{part}-00000-of-00001.parquet", columns)


def cifar(names: dict[str, list[str]], label: str, label_bytes: int = 0) -> dict[str, bytes]:
    """Batches, of the python version without `label_bytes`."""
    classes, files = (100 if label == "fine_labels" else 10), {}
    for part, n, seed in PARTS:
        rows, labels = random_pictures(n, 3, 32, seed).reshape(n, -1), random_labels(n, classes, seed)
        cut = np.array_split(np.arange(n), len(names[part]))
        for file, some in zip(names[part], cut, strict=True):
            if label_bytes:
                before = np.repeat(labels[some, None], label_bytes, axis=1).astype(np.uint8)
                files[file] = np.concatenate([before, rows[some]], axis=1).tobytes()
            else:
                files[file] = pickled({b"data": rows[some], label.encode(): labels[some].tolist()}, 2)
    return files


CIFAR10 = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
CIFAR10_BINARY = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
CIFAR100 = {"train": ["train"], "test": ["test"]}
CIFAR100_BINARY = {"train": ["train.bin"], "test": ["test.bin"]}


def emnist_archive(folder: Path) -> None:
    grey(folder / "made", "emnist-byclass-", "test", 62, transposed=True)
    write_zip(folder / "gzip.zip", {f"gzip/{path.name}": path.read_bytes() for path in (folder / "made").iterdir()})


PICTURES = {
    "mnist, hub": ("mnist", "mnist", lambda folder: hub(folder, "mnist")),
    "mnist, idx": ("mnist", "mnist", grey),
    "mnist, torchvision": ("mnist", "MNIST/raw", grey),
    "fashion_mnist, hub": ("fashion_mnist", "fashion_mnist", lambda folder: hub(folder, "fashion_mnist")),
    "fashion_mnist, idx": ("fashion_mnist", "FashionMNIST/raw", grey),
    "emnist, archive": ("emnist", "emnist", emnist_archive),
    "emnist, parquet": ("emnist", "emnist", lambda folder: hub(folder, "emnist")),
    "cifar10, hub": ("cifar10", "cifar10", lambda folder: hub(folder, "cifar10", "img", size=32)),
    "cifar10, python": (
        "cifar10",
        "cifar-10-batches-py",
        lambda folder: write_files(folder, cifar(CIFAR10, "labels")),
    ),
    "cifar10, binary": (
        "cifar10",
        "cifar10",
        lambda folder: write_tar(folder / "cifar-10-binary.tar.gz", cifar(CIFAR10_BINARY, "labels", 1)),
    ),
    "cifar100, hub": ("cifar100", "cifar100", lambda folder: hub(folder, "cifar100", "img", "fine_label", 32)),
    "cifar100, python": (
        "cifar100",
        "cifar100",
        lambda folder: write_tar(folder / "cifar-100-python.tar.gz", cifar(CIFAR100, "fine_labels")),
    ),
    "cifar100, binary": (
        "cifar100",
        "cifar-100-binary",
        lambda folder: write_files(folder, cifar(CIFAR100_BINARY, "fine_labels", 2)),
    ),
}


@pytest.mark.parametrize("case", PICTURES)
def test_pictures(tmp_path: Path, case: str) -> None:
    name, folder, make = PICTURES[case]
    (tmp_path / folder).mkdir(parents=True)
    make(tmp_path / folder)
    data, known = load(name, tmp_path), source(name)
    for (x, y), (_, n, seed) in zip([(data.x, data.y), data.test], PARTS, strict=True):
        assert np.array_equal(x, random_pictures(n, known.picture.channels, known.picture.size, seed))
        assert np.array_equal(y, random_labels(n, known.classes, seed))
    assert data.name == f"{name} ({N} of {known.sizes['train']:,} training samples)", "a part says that it is one"
    assert (data.classes, data.shape) == (known.classes, known.sample_shape())
    assert (data.preparation, data.augmentation) == (known.preparation, None)


def photographs(folder: Path, name: str, part: str = "train", numbers: bool = False) -> None:
    """Two pictures of every domain, in the hub's layout."""
    domains = source(name).domains or ("one", "two")
    columns = {
        "image": picture_column(list(random_pictures(2 * len(domains), 3, 30))),
        "domain": np.repeat(np.arange(len(domains)), 2) if numbers else list(np.repeat(domains, 2)),
        "label": random_labels(2 * len(domains), source(name).classes),
    }
    write_parquet(folder / f"{part}-00000-of-00001.parquet", columns, {"domain": domains} if numbers else None)


DOMAINS = {
    "pacs": ("art_painting", "cartoon", "photo", "sketch"),
    "office_home": ("Art", "Clipart", "Product", "Real World"),
    "domainnet": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
}


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("name", DOMAINS)
def test_photographs_in_domains(tmp_path: Path, name: str, numbers: bool) -> None:
    assert source(name).domains == DOMAINS[name]
    photographs(tmp_path / name, name, numbers=numbers)
    held_out = DOMAINS[name][1]
    clients = len(DOMAINS[name]) - 1
    data = load(name, tmp_path, clients=clients, partition=Domain(), test_domain=held_out, image_size=16)
    assert data.shape == (3, 16, 16)
    assert data.sizes.tolist() == [2] * clients
    assert len(data.test[1]) == 2
    labels = random_labels(2 * len(DOMAINS[name]), source(name).classes)
    assert data.test[1].tolist() == labels[2:4].tolist()
    assert data.y[data.members].tolist() == [*labels[:2], *labels[4:]]


@pytest.mark.parametrize("name", DOMAINS)
def test_photographs_in_folders(tmp_path: Path, name: str) -> None:
    folder = source(name).folders[0]
    for i, domain in enumerate(DOMAINS[name]):
        for j, cls in enumerate(("ant", "bee")):
            write_files(tmp_path, {f"{folder}/{domain}/{cls}/1.png": encoded(random_pictures(1, 3, 40, 2 * i + j)[0])})
    data = load(name, tmp_path, test_domain=DOMAINS[name][-1], image_size=16)
    assert (len(data.y), len(data.test[1])) == (2 * len(DOMAINS[name]) - 2, 2)
    assert data.test[1].tolist() == [0, 1]


def test_both_parts_of_domainnet_are_used(tmp_path: Path) -> None:
    for part in ("train", "test"):
        photographs(tmp_path / "domainnet", "domainnet", part)
    whole = load("domainnet", tmp_path, image_size=16)
    assert (len(whole.y), len(whole.test[1])) == (12, 12)
    held = load("domainnet", tmp_path, image_size=16, test_domain="real")
    assert (len(held.y), len(held.test[1])) == (20, 4)


def femnist(folder: Path, sizes: list[int]) -> np.ndarray:
    """Pictures of writers with so many each; gives the writers."""
    writers = np.random.default_rng(0).permutation(np.repeat([f"f{i:04}_{i}" for i in range(len(sizes))], sizes))
    columns = {
        "image": picture_column(list(random_pictures(len(writers)))),
        "writer_id": list(writers),
        "hsf_id": np.zeros(len(writers), int),
        "character": random_labels(len(writers), 62),
    }
    write_parquet(folder / "femnist" / "data" / "train-00000-of-00001.parquet", columns)
    return writers


def test_writers_are_the_clients_of_femnist(tmp_path: Path) -> None:
    sizes = [10, 25, 3]
    writers = femnist(tmp_path, sizes)
    data = load("femnist", tmp_path, clients=3, partition=Natural(), partial=False)
    assert data.sizes.tolist() == [9, 23, 3]
    assert len(data.test[1]) == 3
    for i in range(3):
        mine, _ = data.client(i)
        of_writer = {picture.tobytes() for picture in random_pictures(38)[writers == f"f{i:04}_{i}"]}
        assert {picture.numpy().tobytes() for picture in mine} < of_writer or sizes[i] < 10
    assert data.inputs(torch.arange(2)).max() <= 1


def test_every_set_is_in_these_tests() -> None:
    # In test_named_sets.py:
    elsewhere = {"cinic10", "shakespeare", "shakespeare_roles", "shapes", "svhn", "tiny_imagenet", *MEDICAL_SETS}
    tested = {name for name, _, _ in PICTURES.values()} | set(DOMAINS) | {"femnist"} | elsewhere
    assert tested | {"digits", "ag_news", "dbpedia_14"} == {name for name in source_names() if not is_folder(name)}


@pytest.mark.parametrize(
    ("written", "name"), [("CIFAR-10", "cifar10"), ("Fashion-MNIST", "fashion_mnist"), ("AGNews", "ag_news")]
)
def test_names_may_be_written_in_other_ways(written: str, name: str) -> None:
    assert known_source(written) == name


# What cannot work


def test_wrong_counts_are_named_and_can_be_accepted(tmp_path: Path) -> None:
    grey(tmp_path / "mnist")
    with refused("data.name = 'mnist': train has 12 samples, the set has 60,000", "--data.partial true"):
        load("mnist", tmp_path, partial=False)
    assert len(load("mnist", tmp_path).y) == 12


def test_a_missing_test_part_is_named(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mnist", "train", random_pictures(4), [0, 1, 2, 3])
    with refused("data.name = 'mnist'", "the set has 60,000"):
        load("mnist", tmp_path, partial=False)
    with refused("the files have no test part"):
        load("mnist", tmp_path)


def test_whole_sets_need_no_permission_however_they_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"mnist": {"train": N, "test": M}, "pacs": {"train": 8}, "domainnet": {"train": 10, "test": 14}}
    for name, some in sizes.items():
        monkeypatch.setitem(vars(source(name)), "sizes", some)
    grey(tmp_path / "mnist")
    assert len(load("mnist", tmp_path, partial=False).y) == N
    photographs(tmp_path / "pacs", "pacs")
    assert len(load("pacs", tmp_path, partial=False, test_domain="photo", image_size=16).y) == 6
    photographs(tmp_path / "domainnet", "domainnet")
    options = {"partial": False, "image_size": 16, "test_domain": "real"}
    with refused("train has 12 samples, the set has 10"):
        load("domainnet", tmp_path, **options)
    monkeypatch.setitem(vars(source("domainnet")), "sizes", {"train": 10, "test": 2})
    assert len(load("domainnet", tmp_path, **options).y) == 10, "all in one part"


@pytest.mark.parametrize("label", [10, 255, -1])
def test_labels_out_of_range(tmp_path: Path, label: int) -> None:
    write_pictures(tmp_path / "mnist", "train", random_pictures(3), [0, 1, label])
    with refused(f"data: mnist train sample 2 has class {label}, outside 0..9"):
        load("mnist", tmp_path)


def test_a_part_without_samples(tmp_path: Path) -> None:
    write_pictures(tmp_path / "mnist", "train", random_pictures(3), [0, 1, 2])
    write_pictures(tmp_path / "mnist", "test", random_pictures(1)[:0], np.zeros(0, np.int64))
    with refused("data: mnist test has no samples"):
        load("mnist", tmp_path)


def test_a_wrong_number_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grey(tmp_path / "mnist")
    original = module.write_pictures

    def fewer(writer, part, content, shape, progress) -> None:
        short = type(content)(content.labels, content.samples[:-1])
        original(writer, part, short, shape, progress)

    monkeypatch.setattr(module, "write_pictures", fewer)
    with refused("data: train has 12 labels but 11 pictures"):
        load("mnist", tmp_path)


def test_data_folders_that_do_not_work(tmp_path: Path) -> None:
    with refused("data.name = 'mnist' needs files: give their folder as data_dir (--data-dir), or set FEDFLAT_DATA"):
        ff.data.load("mnist", clients=2)
    with refused(f"data_dir = {str(tmp_path / 'none')!r} is not a folder"):
        load("mnist", tmp_path / "none")
    with refused(f"data_dir = {str(tmp_path)!r} has no folder 'mnist'; it should hold", "train-*.parquet", "idx3"):
        load("mnist", tmp_path)
    (tmp_path / "mnist").mkdir()
    with refused(f"data folder {tmp_path / 'mnist'} has no files of mnist; expected train-*.parquet with columns"):
        load("mnist", tmp_path)
    write_pictures(tmp_path / "mnist", "test", random_pictures(3), [0, 1, 2])
    with refused("has no files of mnist"):
        load("mnist", tmp_path)


def test_the_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grey(tmp_path / "one" / "mnist")
    monkeypatch.setenv("FEDFLAT_DATA", str(tmp_path / "one"))
    assert len(ff.data.load("mnist", clients=2, partial=True).y) == N
    with refused("data_dir"):
        load("mnist", tmp_path / "other")


@pytest.mark.parametrize("folder", ["", "data", "mnist"])
def test_the_data_folder_may_be_the_set_itself(tmp_path: Path, folder: str) -> None:
    """As the hub's command line downloads it."""
    write_files(tmp_path, {"README.md": b"# MNIST", ".gitattributes": b""})
    hub(tmp_path / folder, "mnist")
    assert len(load("mnist", tmp_path).y) == N


def test_the_data_folder_may_have_the_sets_name(tmp_path: Path) -> None:
    grey(tmp_path / "mnist" / "raw")
    assert len(load("mnist", tmp_path / "mnist").y) == N


def test_another_set_is_not_taken_for_the_one_that_is_missing(tmp_path: Path) -> None:
    """Beside a file, such as a README, DATA holds folders of other sets."""
    write_files(tmp_path, {"README.md": b"my sets"})
    hub(tmp_path / "mnist", "mnist")
    assert len(load("mnist", tmp_path).y) == N
    with refused("has no folder 'fashion_mnist'"):
        load("fashion_mnist", tmp_path)


def test_unknown_options() -> None:
    with refused("data.augmentation is unknown; known options are label_columns", "did you mean augment?"):
        ff.data.load("digits", clients=2, augmentation="crop-flip")


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("augment", "flip", "data.augment must be one of 'none', 'crop-flip', 'fl-simulator', got 'flip'"),
        ("partial", "yes", "data.partial must be true or false, got 'yes'"),
        ("train_samples", 0, "data.train_samples must be a whole number in [1, inf) or none, got 0"),
        ("train_samples", 1.5, "data.train_samples must be a whole number"),
        ("test_samples", "many", "data.test_samples must be a whole number"),
        ("image_size", 7, "data.image_size must be a whole number in [8, 2048] or none, got 7"),
        ("test_domain", 3, "data.test_domain"),
        ("validation", 0.95, "data.validation must be a number in [0, 0.9], got 0.95"),
        ("validation", -0.1, "data.validation must be a number in [0, 0.9], got -0.1"),
        ("validation", float("nan"), "data.validation must be a number in [0, 0.9], got nan"),
        ("train_samples", 1348, "data.train_samples = 1348 is more than the 1347 there are"),
        ("test_domain", "photo", "data.test_domain = 'photo' is unknown; the set has no domains"),
        ("image_size", 16, "data.image_size = 16 goes with photographs"),
        ("text_length", 0, "data.text_length must be a whole number in [1, 4096] or none, got 0"),
        ("text_length", 64, "data.text_length = 64 goes with texts, and this set has none"),
    ],
)
def test_options_that_do_not_work(option: str, value, problem: str) -> None:
    with refused(problem):
        ff.data.load("digits", clients=2, **{option: value})


@pytest.mark.parametrize("option", [{"image_size": 16}, {"augment": "crop-flip"}, {"augment": "fl-simulator"}])
def test_texts_have_no_pictures_to_prepare(tmp_path: Path, option: dict) -> None:
    for part in ("train", "test"):
        write_parquet(tmp_path / "ag_news" / f"{part}.parquet", {"text": ["a", "b"], "label": [0, 1]})
    load("ag_news", tmp_path)
    with refused(*(f"data.{name} = {value!r} goes with p" for name, value in option.items())):
        load("ag_news", tmp_path, **option)


def test_the_size_of_pictures_that_have_one(tmp_path: Path) -> None:
    grey(tmp_path / "mnist")
    with refused("data.image_size = 32 goes with photographs"):
        load("mnist", tmp_path, image_size=32)


def test_sizes_of_photographs_are_kept_apart(tmp_path: Path, cache: Path) -> None:
    photographs(tmp_path / "pacs", "pacs")
    for size in (16, 24, 16):
        data = load("pacs", tmp_path, test_domain="photo", image_size=size)
        assert data.shape == source("pacs").sample_shape(SampleFormat(size)) == (3, size, size)
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 2
    assert source("pacs").sample_shape() == (3, 224, 224)


def test_photographs_are_normalised_as_imagenets(tmp_path: Path) -> None:
    photographs(tmp_path / "pacs", "pacs")
    data = load("pacs", tmp_path, test_domain="photo", image_size=16)
    assert data.preparation.mean == (0.485, 0.456, 0.406)
    assert data.preparation.std == (0.229, 0.224, 0.225)


def test_the_options_reach_the_data(tmp_path: Path) -> None:
    grey(tmp_path / "mnist")
    data = load("mnist", tmp_path, augment="fl-simulator", train_samples=10, test_samples=2, validation=0.2)
    assert (len(data.y), len(data.test[1]), data.validation.sizes.tolist()) == (10, 2, [1, 1])
    assert data.augmentation.flip_first
    subset = {picture.numpy().tobytes() for picture in data.x}
    assert subset < {picture.tobytes() for picture in random_pictures(N)}
    assert data.contents_hash() != load("mnist", tmp_path).contents_hash()


def test_progress_is_told(tmp_path: Path) -> None:
    grey(tmp_path / "mnist")
    seen = []
    options = {"data_dir": str(tmp_path), "partial": True, "progress": lambda *done: seen.append(done)}
    ff.data.prepare("mnist", **options)
    assert seen == [("train", N, N), ("test", M, M)]
    ff.data.prepare("mnist", **options)
    assert len(seen) == 2, "nothing to do"

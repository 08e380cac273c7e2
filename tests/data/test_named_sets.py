"""Sets that are known by name, in small files of the layouts in which they are published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

import fedflat as ff
from fedflat.data.medical_sets import MEDICAL_SETS
from fedflat.data.readers.plays import RoleText
from support.files import encoded, picture_column, random_pictures, refused, write_files, write_parquet

TINY = [f"n{i:08}" for i in range(200)]
CINIC = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def load(name: str, folder: Path, **options) -> ff.FederatedData:
    return ff.data.load(name, **({"clients": 2, "data_dir": str(folder), "partial": True} | options))


# Tiny-ImageNet and CINIC-10: folders of pictures


def tiny(folder: Path, names: list[str] = TINY, annotated: bool = True) -> list[str]:
    """One training picture of each class, and three for validation in one folder; gives the classes of these."""
    root, shown = "tiny-imagenet-200", [names[7], names[0], names[7]]
    files = {f"{root}/train/{name}/images/{name}_0.JPEG": encoded(random_pictures(1, 3, 64, i)[0])
             for i, name in enumerate(names)}  # fmt: skip
    files |= {f"{root}/val/images/val_{i}.JPEG": encoded(random_pictures(1, 3, 64, 900 + i)[0]) for i in range(3)}
    files[f"{root}/test/images/test_0.JPEG"] = encoded(random_pictures(1, 3, 64, 999)[0])  # its classes are secret
    if annotated:
        rows = [f"val_{i}.JPEG\t{name}\t0\t32\t44\t62\n" for i, name in enumerate(shown)]
        files[f"{root}/val/val_annotations.txt"] = "".join(rows).encode()
    write_files(folder, files)
    return shown


def test_tiny_imagenet_as_it_is_published(tmp_path: Path) -> None:
    shown = tiny(tmp_path)
    data = load("tiny-imagenet", tmp_path)
    assert data.y.tolist() == list(range(200))
    assert data.test[1].tolist() == [TINY.index(name) for name in shown]
    assert torch.equal(data.x[3], torch.from_numpy(random_pictures(1, 3, 64, 3)[0]))
    assert torch.equal(data.test[0][1], torch.from_numpy(random_pictures(1, 3, 64, 901)[0]))


def test_tiny_imagenet_with_validation_pictures_in_class_folders(tmp_path: Path) -> None:
    tiny(tmp_path, annotated=False)
    root = tmp_path / "tiny-imagenet-200"
    for i, name in enumerate((TINY[9], TINY[2], TINY[9])):
        (root / "val" / name / "images").mkdir(parents=True, exist_ok=True)
        (root / "val" / "images" / f"val_{i}.JPEG").rename(root / "val" / name / "images" / f"val_{i}.JPEG")
    assert sorted(load("tiny-imagenet", tmp_path).test[1].tolist()) == [2, 9, 9]


def test_a_copy_without_all_classes_is_not_numbered_by_what_is_there(tmp_path: Path) -> None:
    tiny(tmp_path, TINY[:30])
    with refused("train has 30 class folders, the set has 200"):
        load("tiny-imagenet", tmp_path)


def test_pictures_without_annotations_are_named(tmp_path: Path) -> None:
    tiny(tmp_path, annotated=False)
    with refused("val_0.JPEG", "no annotation names its class"):
        load("tiny-imagenet", tmp_path)
    (tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text("val_0.JPEG\n")
    with refused("val_annotations.txt", "without the name of a picture and of its class"):
        load("tiny-imagenet", tmp_path)


@pytest.mark.parametrize("part", ["valid", "test"])
def test_the_hubs_files_of_tiny_imagenet(tmp_path: Path, part: str) -> None:
    for name, seed in (("train", 0), (part, 1)):
        columns = {"image": picture_column(list(random_pictures(4, 3, 64, seed))), "label": [0, 199, 7, 7]}
        write_parquet(tmp_path / "data" / f"{name}-00000-of-00001-abcdef0123456789.parquet", columns)
    data = load("tiny-imagenet", tmp_path)
    assert torch.equal(data.test[0], torch.from_numpy(random_pictures(4, 3, 64, 1)))


def cinic(folder: Path, place: str = "") -> None:
    write_files(folder, {
        f"{place}{part}/{name}/{name}_{part}.png": encoded(random_pictures(1, 3, 32, 100 * seed + i)[0])
        for seed, part in enumerate(("train", "valid", "test")) for i, name in enumerate(CINIC)
    })  # fmt: skip


def test_cinic_10_leaves_its_validation_part_out(tmp_path: Path) -> None:
    cinic(tmp_path, "CINIC-10/")
    data = load("cinic10", tmp_path)
    assert (data.y.tolist(), data.test[1].tolist()) == ([*range(10)], [*range(10)])
    assert torch.equal(data.test[0][4], torch.from_numpy(random_pictures(1, 3, 32, 204)[0]))


def test_the_hubs_own_conversion_of_any_set(tmp_path: Path) -> None:
    """Its files are called 0000.parquet, and lie in a folder with the name of their part."""
    for seed, part in enumerate(("train", "validation", "test")):
        for i in range(2):
            columns = {"image": picture_column(list(random_pictures(3, 3, 32, 10 * seed + i))), "label": [i, 2, 9]}
            write_parquet(tmp_path / "cinic10" / "default" / part / f"000{i}.parquet", columns)
    for name, folder, classes in (("cinic10", tmp_path, ()), ("parquet", tmp_path / "cinic10", CINIC)):
        data = load(name, folder, class_names=classes)
        assert (len(data.y), len(data.test[1])) == (6, 6)
        assert torch.equal(data.x[3:], torch.from_numpy(random_pictures(3, 3, 32, 1)))
        assert torch.equal(data.test[0][:3], torch.from_numpy(random_pictures(3, 3, 32, 20)))
    (tmp_path / "cinic10" / "default" / "train" / "0000.parquet").unlink()
    with refused("0001.parquet", "there are 1 of its part's 1 file(s), or one of them twice"):
        load("cinic10", tmp_path)


# SVHN: MATLAB's files


def digits(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return random_pictures(n, 3, 32, seed), np.arange(1, n + 1) % 10


def svhn(folder: Path, compressed: bool = True, **changes: np.ndarray) -> None:
    folder.mkdir(exist_ok=True)
    for seed, part in enumerate(("train", "test")):
        x, y = digits(12, seed)
        arrays = {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y).astype(np.uint8)[:, None]} | changes
        savemat(folder / f"{part}_32x32.mat", arrays, do_compression=compressed)


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn_as_it_is_published(tmp_path: Path, compressed: bool) -> None:
    svhn(tmp_path / "svhn", compressed)
    data = load("svhn", tmp_path)
    assert torch.equal(data.x, torch.from_numpy(digits(12, 0)[0]))
    assert torch.equal(data.test[0], torch.from_numpy(digits(12, 1)[0]))
    assert data.y.tolist() == digits(12, 0)[1].tolist()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": np.zeros((12, 1), np.uint8)}, "a digit outside 1..10"),
        ({"y": np.ones((11, 1), np.uint8)}, "has 12 pictures and digits of shape (11, 1)"),
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "X is uint8 of shape (32, 32, 3), expected uint8 with 4 axes"),
        ({"X": np.zeros((32, 32, 3, 12))}, "X is double of shape"),
        ({"X": np.zeros((32, 30, 3, 12), np.uint8)}, "has pictures of shape (12, 3, 32, 30)"),
    ],
)  # fmt: skip
def test_other_arrays_of_svhn_are_one_line(tmp_path: Path, changes: dict, words: str) -> None:
    svhn(tmp_path / "svhn", **changes)
    with refused("train_32x32.mat", words):
        load("svhn", tmp_path)


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0 MAT-file", bytes(200), b"<html>" * 40])
def test_what_is_no_matlab_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    svhn(tmp_path / "svhn")
    (tmp_path / "svhn" / "train_32x32.mat").write_bytes(content)
    with refused("train_32x32.mat"):
        load("svhn", tmp_path)


def test_a_cut_off_matlab_file_is_one_line(tmp_path: Path) -> None:
    svhn(tmp_path / "svhn")
    path = tmp_path / "svhn" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:-400])
    with refused("train_32x32.mat"):
        load("svhn", tmp_path)


# MedMNIST: one npz file for each set


def medical(folder: Path, name: str, **changes: np.ndarray) -> dict[str, np.ndarray]:
    known = MEDICAL_SETS[name]
    arrays: dict[str, np.ndarray] = {}
    for seed, part in enumerate(("train", "val", "test")):
        pictures = random_pictures(9, known.picture.channels, 28, seed)
        arrays[f"{part}_images"] = pictures[:, 0] if known.picture.channels == 1 else pictures.transpose(0, 2, 3, 1)
        rows = np.random.default_rng(seed).integers(0, 2 if known.task == "multi-label" else known.classes, (9, 14))
        arrays[f"{part}_labels"] = rows if known.task == "multi-label" else rows[:, :1].astype(np.uint8)
    arrays |= changes
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)
    return arrays


@pytest.mark.parametrize("name", [name for name, known in MEDICAL_SETS.items() if known.task == "classification"])
def test_medmnist_as_it_is_published(tmp_path: Path, name: str) -> None:
    arrays = medical(tmp_path / "medmnist", name)
    data = load(name, tmp_path)
    assert torch.equal(data.x, torch.from_numpy(random_pictures(9, MEDICAL_SETS[name].picture.channels, 28, 0)))
    assert data.y.tolist() == arrays["train_labels"][:, 0].tolist()
    assert data.test[1].tolist() == arrays["test_labels"][:, 0].tolist()
    assert len(data.class_names) == data.classes


def test_a_set_with_several_labels_is_for_that_task(tmp_path: Path) -> None:
    arrays = medical(tmp_path / "medmnist", "chestmnist")
    data = load("chestmnist", tmp_path, task="multi-label")
    assert (data.y.tolist(), data.classes) == (arrays["train_labels"].tolist(), 14)
    with refused("y of shape (9, 14)"):
        load("chestmnist", tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_images": np.zeros((9, 64, 64, 3), np.uint8)}, "has pictures of shape (9, 64, 64, 3) uint8"),
        ({"train_images": np.zeros((9, 28, 28, 3))}, "has pictures of shape (9, 28, 28, 3) float64"),
        ({"train_labels": np.zeros((9, 2), np.uint8)}, "has labels (9, 2) uint8"),
        ({"train_labels": np.full((9, 1), 8, np.uint8)}, "has class 8, outside 0..7"),
        ({"train_labels": np.zeros((8, 1), np.uint8)}, "has labels (8, 1)"),
    ],
)  # fmt: skip
def test_other_arrays_of_medmnist_are_one_line(tmp_path: Path, changes: dict, words: str) -> None:
    medical(tmp_path / "medmnist", "bloodmnist", **changes)
    with refused(words):
        load("bloodmnist", tmp_path)


# Shakespeare: the next character

PLAY = """First Citizen:
Speak,  speak: now.
We know't.

ANGELO:
Ay.

First Citizen:
Again $ he:
"""


def test_a_text_by_role(tmp_path: Path) -> None:
    write_files(tmp_path, {"shakespeare/input.txt": PLAY.encode()})
    lines = [["Speak, speak: now.\n", "We know't.\n", "Again $ he:\n"], ["Ay.\n"]]
    with refused("0 samples; 1 to"):  # no role has ten lines, so that none is for test
        load("shakespeare", tmp_path)
    write_files(tmp_path, {"shakespeare/input.txt": (PLAY + "To be.\n" * 17).encode()})
    lines[0] += ["To be.\n"] * 17
    data = load("shakespeare", tmp_path, partition=ff.Natural())
    assert data.client_names == ("ANGELO", "First Citizen")
    assert len(data.test[1]) == 2 * len("To be.\n")  # two of twenty lines
    assert data.own_test.sizes.tolist() == [0, 14]
    for client, said in ((0, lines[1]), (1, lines[0][:18])):
        expected = [(" " * 80 + line)[i : i + 80] for line in said for i, letter in enumerate(line) if letter != "$"]
        following = [letter for line in said for letter in line if letter != "$"]
        x, y = data.client(client)
        assert [text_of(row) for row in x.tolist()] == [text.replace("$", "\0") for text in expected]
        assert "".join(LETTERS[k] for k in y.tolist()) == "".join(following)


def test_a_text_by_role_in_pieces(tmp_path: Path) -> None:
    """Every character but the first of a part is a label once, except those that are no letter."""
    lines = "".join(f"Line {i} ends.\n" for i in range(20))
    write_files(tmp_path, {"shakespeare_roles/input.txt": f"ANGELO:\nAy $o.\n\nB:\n{lines}".encode()})
    with refused("shakespeare_roles' has labels for next-token, not for classification; set loss = 'next-token'"):
        load("shakespeare_roles", tmp_path)
    data = load("shakespeare_roles", tmp_path, partition=ff.Natural(), task="next-token")
    assert (data.client_names, data.own_test.sizes.tolist()) == (("ANGELO", "B"), [0, 1])
    said = ["Ay $o.\n", "".join(f"Line {i} ends.\n" for i in range(18))]
    for client, text in enumerate(said):
        x, y = data.client(client)
        assert x.shape == y.shape == (-(-(len(text) - 1) // 80), 80)
        assert text_of(x.flatten()[: len(text) - 1].tolist()) == text[:-1].replace("$", "\0")
        assert x.flatten()[len(text) - 1 :].count_nonzero() == 0
        numbers = [-100 if letter == "$" else LETTERS.index(letter) + 2 for letter in text[1:]]
        assert y.flatten().tolist() == numbers + [-100] * (y.numel() - len(numbers))
    assert data.class_names[data.client(0)[1][0, 0]] == "y"
    largest = RoleText(in_pieces=True, most=1).parts(tmp_path / "shakespeare_roles", None)
    assert set(largest["train"].user) == {"B"}


def test_shapes_are_drawn_with_the_classes_of_their_pixels() -> None:
    """Inside a shape pixels are brighter than on the background; users differ, and their parts are their own."""
    data = ff.data.load("shapes", 20, ff.Natural(), task="segmentation")
    assert data.sizes.tolist() == [30] * 20
    assert data.own_test.sizes.tolist() == [10] * 20
    grounds = []
    for client in range(20):
        x, y = data.client(client)
        light = x[:, 0].double()
        assert light[y > 0].mean() > light[y == 0].mean() + 40
        grounds.append(float(light[y == 0].mean()))
        assert float(light[y == 0].std()) < 15  # the noise alone
    assert np.ptp(grounds) > 40
    assert set(data.y.unique().tolist()) == {0, 1, 2, 3}
    once, again = (ff.data.load("shapes", 20, ff.Natural(), task="segmentation").contents_hash() for _ in range(2))
    assert once == again


LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"


def text_of(row: list[int]) -> str:
    return "".join("\0" if number == 1 else LETTERS[number - 2] for number in row)


def test_leafs_files_of_shakespeare(tmp_path: Path) -> None:
    texts = {"HAMLET": ["x" * 79 + letter for letter in "abc"], "YORICK": ["y" * 80]}
    held = {user: {"x": own, "y": list("b?}"[: len(own)])} for user, own in texts.items()}
    content = {"users": list(texts), "num_samples": [3, 1], "hierarchies": ["PLAY"] * 2, "user_data": held}
    for part in ("train", "test"):
        write_files(
            tmp_path, {f"shakespeare/{part}/all_data_niid_0_keep_0_{part}_9.json": json.dumps(content).encode()}
        )
    data = load("shakespeare", tmp_path, partition=ff.Natural())
    assert [text_of(row) for row in data.client(0)[0].tolist()] == texts["HAMLET"]
    assert [LETTERS[k] for k in data.client(0)[1].tolist()] == ["b", "?", "}"]
    assert data.own_test.sizes.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"x": ["short"], "y": ["a"]}, "samples that are not texts of 80 characters"),
        ({"x": ["x" * 80], "y": ["ab"]}, "labels that are not one character each"),
        ({"x": [[1.0] * 80], "y": ["a"]}, "samples that are not texts of 80 characters"),
    ],
)  # fmt: skip
def test_other_files_of_shakespeare_are_one_line(tmp_path: Path, own: dict, words: str) -> None:
    content = {"users": ["A"], "user_data": {"A": own}}
    write_files(tmp_path, {"shakespeare/train/a.json": json.dumps(content).encode()})
    with refused("a.json: user 'A' has", words):
        load("shakespeare", tmp_path)


def test_a_text_in_which_nobody_speaks_is_one_line(tmp_path: Path) -> None:
    write_files(tmp_path, {"shakespeare/input.txt": b"Nothing.\n"})
    with refused("has no line such as 'First Citizen:'"):
        load("shakespeare", tmp_path)

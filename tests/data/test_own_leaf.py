"""Data in LEAF's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedflat as ff
from support.files import refused

RNG = np.random.default_rng(0)
NUMBERS = {user: RNG.random((n, 64)).round(6).tolist() for user, n in {"f0001": 12, "f0002": 10, "f0003": 11}.items()}


def leaf(samples: dict[str, list[Any]], labels: Any = None) -> dict[str, Any]:
    return {
        "users": list(samples),
        "num_samples": [len(own) for own in samples.values()],
        "user_data": {user: {"x": own, "y": [i % 3 for i in range(len(own))] if labels is None else labels[user]}
                      for user, own in samples.items()},
    }  # fmt: skip


def write(folder: Path, content: Any, test: Any = None, name: str = "all_data_niid_0_keep_0_train_9.json") -> Path:
    for part, some in {"train": content, "test": test}.items():
        if some is not None:
            (folder / part).mkdir(exist_ok=True, parents=True)
            (folder / part / name.replace("train", part)).write_text(json.dumps(some))
    return folder


def load(folder: Path, clients: int = 3, **options) -> ff.FederatedData:
    return ff.data.load("leaf", clients=clients, data_dir=str(folder), **options)


def test_numbers_by_user(tmp_path: Path) -> None:
    test = {user: own[:2] for user, own in NUMBERS.items()}
    write(tmp_path, leaf(NUMBERS), leaf(test))
    data = load(tmp_path, partition=ff.Natural())
    assert data.sizes.tolist() == [12, 10, 11]
    assert torch.equal(data.client(1)[0], torch.tensor(NUMBERS["f0002"], dtype=torch.float32))
    pictures = load(tmp_path, image_size=8)
    assert pictures.shape == (1, 8, 8)
    assert torch.equal(pictures.x.flatten(1), data.x)
    assert len(data.test[1]) == 6


def test_users_may_be_in_several_files(tmp_path: Path) -> None:
    for user, own in NUMBERS.items():
        write(tmp_path, leaf({user: own}), name=f"{user}.json")
    data = load(tmp_path, partition=ff.Natural())
    assert (data.sizes.tolist(), len(data.test[1])) == ([11, 9, 10], 3)  # without test files, a tenth of each user


def test_texts_by_user(tmp_path: Path) -> None:
    texts = {"a": [f"good day {i}" for i in range(10)], "b": ["bad day"] * 10}
    write(tmp_path, leaf(texts, {"a": ["positive"] * 10, "b": ["negative"] * 10}))
    data = load(tmp_path, clients=2, partition=ff.Natural(), text_length=4, vocabulary=["day", "good"])
    assert data.class_names == ("negative", "positive")
    assert data.client(0)[0][0].tolist() == [3, 2, 1, 0]


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in leaf(NUMBERS).items() if name != key}


BAD: dict[str, tuple[Any, dict, str]] = {
    "no users": (without("users"), {}, "has no list 'users'"),
    "no data": (without("user_data"), {}, "has no object 'user_data'"),
    "a user without data": (leaf(NUMBERS) | {"users": ["f0001", "x"]}, {}, "user 'x' has no lists 'x' and 'y'"),
    "a user twice": (leaf(NUMBERS) | {"users": ["f0001", "f0001"]}, {}, "or is listed twice"),
    "a user that is no text": (leaf(NUMBERS) | {"users": [7]}, {}, "has a user that is no text: 7"),
    "too few labels": (leaf({"a": [[1.0]] * 3}, {"a": [0, 1]}), {}, "user 'a' has 3 samples and 2 labels"),
    "samples of two shapes": (leaf({"a": [[1.0, 2.0], [1.0]]}), {}, "no numbers of one shape"),
    "users of two shapes": (leaf({"a": [[1.0, 2.0]], "b": [[1.0]]}), {}, "user 'b' has samples of another shape"),
    "texts and numbers": (leaf({"a": ["x"], "b": [[1.0]]}), {}, "user 'b' has samples that are no texts"),
    "lists of texts": (leaf({"a": [["id", "a tweet"]]}), {}, "neither a text nor numbers"),
    "no samples": (leaf({"a": []}), {}, "have no samples"),
    "another picture size": (leaf(NUMBERS), {"image_size": 9}, "data.image_size = 9 does not fit samples of 64"),
    "columns": (leaf(NUMBERS), {"label_columns": "y"}, "data.label_columns = ('y',) has no use with LEAF's files"),
    "a list": ([1], {}, "has no list 'users'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line(tmp_path: Path, name: str) -> None:
    content, options, words = BAD[name]
    with refused(words):
        load(write(tmp_path, content), **options)


def test_a_file_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, leaf(NUMBERS)) / "train" / "all_data_niid_0_keep_0_train_9.json"
    path.write_text(path.read_text()[:-9])
    with refused(str(path), "not JSON"):
        load(tmp_path)

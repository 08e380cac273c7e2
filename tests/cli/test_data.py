"""`fedflat data` on small files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.files import random_labels, random_pictures, write_pictures

TRAIN, TEST = 200, 40


def small_cifar10(folder: Path) -> Path:
    """Too few pictures of noise, as the hub has CIFAR-10."""
    for part, n in (("train", TRAIN), ("test", TEST)):
        write_pictures(folder, part, random_pictures(n, 3, 32), random_labels(n), image="img")
    return folder


def test_every_set_is_listed_with_its_files(fedflat) -> None:
    code, out, _ = fedflat("data list")
    assert code == 0
    for words in ("cifar10", "office_home", "the hub: ", "data_batch_1", "60,000"):
        assert words in out.replace("uoft-cs", "")


def test_prepare_says_what_it_found(fedflat, cache: Path) -> None:
    small_cifar10(Path("data/cifar10"))
    code, out, err = fedflat("data prepare CIFAR-10 --data-dir data --partial")
    assert (code, err) == (0, "")
    assert "train 200 samples of 3 x 32 x 32" in out
    assert "test  40 samples of 3 x 32 x 32" in out
    assert str(cache) in out
    assert len(list(cache.glob("cifar10-*"))) == 1


def test_a_set_can_be_fetched_first(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hub of our own: what is asked of it, and where the files go."""
    asked = []

    def snapshot_download(repository: str, local_dir: Path, **options) -> None:
        asked.append((repository, options))
        small_cifar10(local_dir / "plain_text")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    Path("data").mkdir()
    code, out, err = fedflat("data prepare cifar10 --hub --data-dir data --partial")
    assert (code, err) == (0, "")
    assert "train 200 samples" in out
    [(repository, options)] = asked
    assert repository == "uoft-cs/cifar10"
    assert options["repo_type"] == "dataset"
    assert options["allow_patterns"] == "plain_text/*.parquet"


def test_a_hub_that_fails_is_one_line(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_, **__) -> None:
        raise OSError("no route to host\nand much more")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    code, _, err = fedflat("data prepare cifar10 --hub --data-dir .")
    assert (code, err) == (2, "fedflat: hub: uoft-cs/cifar10 cannot be fetched: no route to host\n")


def test_without_the_extra(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, err = fedflat("data prepare cifar10 --hub --data-dir .")
    assert (code, err) == (2, "fedflat: --hub needs the extra: pip install 'fedflat[hub]'\n")


SPLIT = "data partition --data.name cifar10 --data_dir data --data.partial true"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data prepare cifar", "data.name = 'cifar' is unknown; known are ag_news, cifar10,"),
        ("data prepare cifar10", "data.name = 'cifar10' needs files: give --data-dir or set FEDFLAT_DATA"),
        ("data prepare cifar10 --data-dir missing", "data_dir = 'missing' is not a folder"),
        ("data prepare cifar10 --data-dir data", "train has 200 samples, the set has 50,000; to use a part"),
        ("data prepare mnist --data-dir data", "data_dir = 'data' has no folder 'mnist'; it should hold "),
        (
            "data prepare cifar10 --data-dir data --partial --image-size 64",
            "data.image_size = 64 goes with",
        ),
        ("data prepare cifar10 --data-dir data --image-size -3", "data.image_size must be a whole number in [8, 2048]"),
        ("data prepare digits --hub", "--hub: digits is not on the hub; nothing needed: ships with"),
        (
            f"{SPLIT} --data.clients 300",
            "data.clients = 300",
        ),
        (f"{SPLIT} --partition domain", "'domain' needs"),
        (f"{SPLIT} --data.augment x", "data.augment: "),
        ("data partition --data.validation 1.5", "data.validation: "),
        ("data partition --data.train_samples 99999", "data.train_samples = 99999 is more than the 1347 there are"),
        ("data partition --partition.alpha -1", "partition.alpha"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_field(fedflat, line: str, message: str) -> None:
    small_cifar10(Path("data/cifar10"))
    code, _, err = fedflat(line)
    assert code == 2
    assert err.startswith("fedflat: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_truncated_file_is_named(fedflat) -> None:
    folder = small_cifar10(Path("data/cifar10"))
    file = folder / "test-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    code, _, err = fedflat("data prepare cifar10 --data-dir data --partial")
    assert code == 2
    assert file.name in err
    assert err.count("\n") == 1

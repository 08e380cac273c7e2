"""`fedflat data` on small files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedflat.core.errors import InputError
from fedflat.experiments.run_file_readers import read_summary
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


def own_arrays(folder: Path, sign: int = 1) -> None:
    folder.mkdir(parents=True)
    y = np.arange(90) % 3
    x = sign * 5 * np.eye(4)[y] + np.random.default_rng(0).normal(size=(90, 4))
    np.savez(folder / "train.npz", x=x[:60], y=y[:60], domain=np.array(["a", "b"] * 30), user=np.arange(60) // 6)
    np.savez(folder / "test.npz", x=x[60:], y=y[60:], domain=np.array(["a", "b"] * 15), user=np.arange(30) // 3)


def test_a_folder_of_own_arrays_is_prepared_and_split(fedflat) -> None:
    own_arrays(Path("mine"))
    code, out, err = fedflat("data prepare npz --data-dir mine")
    assert (code, err) == (0, "")
    assert "train 60 samples of 4" in out
    assert "test  30 samples of 4" in out
    assert "domain b" in out
    code, out, err = fedflat("data partition --data.name npz --data-dir mine --data.clients 10 --partition natural")
    assert (code, err) == (0, "")
    assert "samples per client  6 to 6" in out


@pytest.mark.slow
def test_own_arrays_are_trained_on_and_the_folder_tells_runs_apart(fedflat) -> None:
    own_arrays(Path("mine"))
    own_arrays(Path("other"), sign=-1)
    line = "run --data.name npz --data.clients 5 --partition natural --rounds 4 --participation 1.0 --flatness []"
    how = "--client.epochs 5 --client.batch_size 5 --client.lr 0.1"
    for folder in ("mine", "other"):
        code, _, err = fedflat(f"{line} {how} --data-dir {folder}")
        assert (code, [one for one in err.splitlines() if "warning" in one]) == (0, [])
    summaries = [json.loads(path.read_text()) for path in Path("runs").glob("*/summary.json")]
    assert len(summaries) == 2  # not one, found to be finished
    assert all(summary["summary"]["test_accuracy_last"] > 0.9 for summary in summaries)
    code, out, _ = fedflat(f"{line} --data-dir mine --dry-run")
    assert code == 0
    assert "model parameters" in out
    code, _, err = fedflat(f"{line} --data-dir mine/none")
    assert (code, "is not a folder" in err) == (2, True)


@pytest.mark.slow
def test_a_regression_runs_is_read_again_and_is_compared_by_r2(fedflat) -> None:
    Path("mine").mkdir()
    x = np.random.default_rng(0).normal(size=(90, 3))
    y = x @ np.array([1.0, -1.0, 0.5])
    np.savez("mine/train.npz", x=x[:60], y=y[:60])
    np.savez("mine/test.npz", x=x[60:], y=y[60:])
    line = "--data.name npz --data-dir mine --data.clients 3 --partition iid --loss regression --rounds 5"
    how = "--participation 1.0 --client.epochs 5 --client.batch_size 5 --client.lr 0.05 --flatness []"
    code, _, _ = fedflat(f"run {line} {how} --out runs/one")
    summary = json.loads(Path("runs/one/summary.json").read_text())
    assert code == 0
    assert summary["settings"]["loss"] == "regression"
    assert summary["summary"]["test_r2_last"] > 0.9
    assert fedflat("resume runs/one")[0] == 0
    code, out, _ = fedflat(f"compare {line} {how} --seeds 0 --seeds 1 --last 1 --out runs/both")
    assert (code, "test R²" in out, "accuracy" in out) == (0, True, False), out
    page = Path("runs/both/report.html").read_text()
    assert "R² against rounds" in page
    assert "root mean squared error" in page
    for command, reason in (
        (f"run {line} --data.validation 0.2", "regression does not have; set validation = 0"),
        ("run --loss regression", "data.name = 'digits' has classes"),
    ):
        code, _, err = fedflat(command)
        assert (code, reason in err) == (2, True), err
    assert len(fedflat("flatness runs/one --measure sharpness")[1]) > 0
    summary["settings"]["loss"] = "cross-entropy"  # a run of a classifier without its accuracy is damaged
    Path("changed.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match="client_accuracy_mean"):
        read_summary(Path("changed.json"))


COMMITS = {"main": "a" * 40, "v2": "b" * 40, "c" * 40: "c" * 40}
Asked = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A hub of our own, which has `COMMITS`: filled with what is fetched from it."""
    asked: Asked = []

    def snapshot_download(repository: str, local_dir: Path, **options: Any) -> None:
        asked.append((repository, options))
        small_cifar10(local_dir / "plain_text")

    class HfApi:
        def dataset_info(self, repository: str, revision: str) -> SimpleNamespace:
            if revision not in COMMITS:
                raise OSError(f"{repository} has no {revision}")
            return SimpleNamespace(sha=COMMITS[revision])

    ours = SimpleNamespace(snapshot_download=snapshot_download, HfApi=HfApi, constants=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "huggingface_hub", ours)
    Path("data").mkdir()
    return asked


FETCH = "data prepare cifar10 --hub --data-dir data --partial"
PIN = Path("data/cifar10/hub.json")


def test_a_set_can_be_fetched_first(fedflat, hub: Asked) -> None:
    """What is asked of the hub, and where the files go."""
    code, out, err = fedflat(FETCH)
    assert (code, err) == (0, "")
    assert "train 200 samples" in out
    [(repository, options)] = hub
    assert repository == "uoft-cs/cifar10"
    assert options == {"repo_type": "dataset", "allow_patterns": "plain_text/*.parquet", "revision": COMMITS["main"]}


@pytest.mark.slow
def test_the_commit_is_kept_and_fetched_again(fedflat, hub: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the branch is at by then; another one is fetched when it is asked for, and then kept."""
    fedflat(FETCH)
    first = COMMITS["main"]
    assert json.loads(PIN.read_text()) == {"repository": "uoft-cs/cifar10", "revision": first}
    monkeypatch.setitem(COMMITS, "main", "d" * 40)
    for flags in ("", "--revision main", "", "--revision v2", "", f"--revision {'c' * 40}", ""):
        assert fedflat(f"{FETCH} {flags}")[0] == 0
    fetched = [options["revision"] for _, options in hub]
    assert fetched == [first, first, "d" * 40, "d" * 40, COMMITS["v2"], COMMITS["v2"], "c" * 40, "c" * 40]


def test_the_kept_commit_is_no_file_of_the_set(fedflat, hub: Asked, cache: Path) -> None:
    """Another commit with the same files converts nothing."""
    for flags in ("", "--revision v2"):
        fedflat(f"{FETCH} {flags}")
    assert len(list(cache.glob("cifar10-*"))) == 1
    (made,) = cache.glob("cifar10-*")
    kept = json.loads((made / "set.json").read_text())["sources"]["files"]
    assert sorted(name for name, _, _ in kept) == [f"plain_text/{p}-00000-of-00001.parquet" for p in ("test", "train")]


def test_the_commit_of_another_repository_is_not_taken(fedflat, hub: Asked) -> None:
    PIN.parent.mkdir()
    PIN.write_text(json.dumps({"repository": "another/cifar10", "revision": "e" * 40}))
    assert fedflat(FETCH)[0] == 0
    assert hub[0][1]["revision"] == COMMITS["main"]


@pytest.mark.parametrize("pin", ["", "[]", '{"revision": "main"}', '{"revision": 3}', "[" * 100_000])
def test_a_damaged_note_of_the_commit_is_named(fedflat, hub: Asked, pin: str) -> None:
    PIN.parent.mkdir()
    PIN.write_text(pin)
    code, _, err = fedflat(FETCH)
    assert code == 2
    assert err.startswith(f"fedflat: {PIN} ")
    assert err.count("\n") == 1
    assert hub == []


def test_a_revision_that_is_not_there_is_named(fedflat, hub: Asked) -> None:
    code, _, err = fedflat(f"{FETCH} --revision v3")
    assert (code, err) == (2, "fedflat: hub: uoft-cs/cifar10 cannot be fetched: uoft-cs/cifar10 has no v3\n")
    assert not PIN.exists()


def test_a_revision_goes_with_the_hub(fedflat, hub: Asked) -> None:
    code, _, err = fedflat("data prepare cifar10 --data-dir data --revision v2")
    assert code == 2
    assert err.startswith("fedflat: revision (--revision) = 'v2' says")
    assert hub == []


@pytest.mark.parametrize("said", ["no route to host\nand much more", ""])
def test_a_hub_that_fails_is_one_line(fedflat, hub: Asked, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    def snapshot_download(*_, **__) -> None:
        raise OSError(said)

    monkeypatch.setattr(sys.modules["huggingface_hub"], "snapshot_download", snapshot_download)
    code, _, err = fedflat(FETCH)
    assert code == 2
    assert err == f"fedflat: hub: uoft-cs/cifar10 cannot be fetched: {said.partition(chr(10))[0] or 'OSError'}\n"


def test_without_the_extra(fedflat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    code, _, err = fedflat("data prepare cifar10 --hub --data-dir .")
    assert (code, err) == (2, "fedflat: --hub needs the extra: pip install 'fedflat[hub]'\n")


SPLIT = "data partition --data.name cifar10 --data_dir data --data.partial true"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data prepare cifar", "data.name = 'cifar' is unknown; known are ag_news,"),
        (
            "data prepare cifar10",
            "data.name = 'cifar10' needs files: give their folder as data_dir (--data-dir), or set",
        ),
        ("data prepare cifar10 --data-dir missing", "data_dir = 'missing' is not a folder"),
        ("data prepare cifar10 --data-dir data", "train has 200 samples, the set has 50,000; to use a part"),
        ("data prepare mnist --data-dir data", "data_dir = 'data' has no folder 'mnist'; it should hold "),
        (
            "data prepare cifar10 --data-dir data --partial --image-size 64",
            "data.image_size = 64 goes with",
        ),
        ("data prepare cifar10 --data-dir data --image-size -3", "data.image_size must be a whole number in [8, 2048]"),
        ("data prepare digits --hub", "hub (--hub): digits is not on the hub; nothing needed: comes with"),
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

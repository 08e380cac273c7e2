"""The ledger of reproductions: what enters, what an entry says of itself, and that no entry is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from fedflat import files
from fedflat.core.errors import InputError
from fedflat.experiments import reproductions
from fedflat.experiments.recipe import find_recipe
from fedflat.experiments.reproductions import LedgerEntry, changed_settings, check_commits, read_ledger, record
from support.small_disk import files_up_to

ROOT = Path(__file__).parents[2]
ENTRY = LedgerEntry("paper/table", "a,b", "FedAvg", "74.08", 12.5, None, [0], [], 800, 800, [], ["0123456789ab"])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"rounds": 1}, "0.00125 of the rounds"),
        ({"rounds": 1600}, "2 of the rounds"),
        ({"changed": ["client.lr", "model"]}, "changed: client.lr, model"),
        ({"rounds": 8, "changed": ["model"]}, "0.01 of the rounds; changed: model"),
    ],
)
def test_an_entry_says_why_it_is_no_reproduction(changes: dict[str, object], why: str) -> None:
    assert replace(ENTRY, **changes).why_none == why


@pytest.mark.parametrize(
    ("commits", "message"),
    [
        ([], "the commit of the code is unknown"),
        ([None], "the commit of the code is unknown"),
        (["0123456789ab", None], "the commit of the code is unknown"),
        (["0123456789ab", "ba9876543210-dirty"], "files differ from the commit, ba9876543210-dirty"),
    ],
)
def test_only_code_with_a_commit_enters(commits: list[str | None], message: str) -> None:
    with pytest.raises(InputError, match=f"^this run: {message}"):
        check_commits(commits, "this run")
    assert check_commits(["a", "b", "a"], "this run") == ["a", "b"]


@pytest.mark.parametrize(("commit", "refused"), [(None, True), ("0123456789ab-dirty", True), ("0123456789ab", False)])
def test_the_code_is_asked_for_its_commit_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str | None, refused: bool
) -> None:
    monkeypatch.setattr(reproductions, "commit_of_code", lambda: commit)
    if refused:
        with pytest.raises(InputError, match=r"--record .*ledger\.json: .* commit"):
            reproductions.check_ledger(tmp_path / "ledger.json")
    else:
        reproductions.check_ledger(tmp_path / "ledger.json")
    assert list(tmp_path.iterdir()) == []


def test_settings_that_are_no_part_of_a_protocol_do_not_count_as_changed() -> None:
    [cell] = find_recipe("fedsmoo/table8").cells()
    run = cell.study(1.0, "data", ["FedAvg"]).runs()[0]
    assert changed_settings(run, run) == []
    same = {"rounds": 3, "seed": 7, "device": "cpu", "executor": "stacked", "workers": 4, "data_dir": "elsewhere",
            "flatness": ["trace"], "probes": [], "probe_every": 9, "metrics": ["auc"]}  # fmt: skip
    assert changed_settings(run.model_copy(update=same), run) == []
    other = run.model_copy(update={"client": replace(run.client, lr=0.5), "eval_every": 7})
    assert changed_settings(other, run) == ["client.lr", "eval_every"]


def test_an_entry_that_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "ledger.json"
    other = replace(ENTRY, method="FedSAM", paper=None, spread=0.5, seeds=[0, 2], missing=[1], changed=["model.name"])
    record(file, [other])
    record(file, [ENTRY])
    assert read_ledger(file) == [ENTRY, other]
    assert read_ledger(tmp_path / "none.json") == []


def test_the_same_runs_have_one_entry_and_other_runs_another(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    record(file, [ENTRY])
    before = file.read_bytes()
    record(file, [ENTRY])
    assert file.read_bytes() == before
    record(file, [replace(ENTRY, ours=13.0)])
    assert [one.ours for one in read_ledger(file)] == [13.0]
    others = [replace(ENTRY, **changes) for changes in (
        {"recipe": "paper/other"}, {"cell": "a,c"}, {"method": "FedSAM"}, {"seeds": [1]}, {"rounds": 8},
        {"changed": ["model"]}, {"commits": ["ba9876543210"]},
    )]  # fmt: skip
    record(file, others)
    assert len(read_ledger(file)) == 1 + len(others)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("{}", "is no ledger of reproductions"),
        ('[{"recipe": "x"}]', r"is no ledger of reproductions: 0\.cell"),
        (lambda: json.dumps([vars(ENTRY) | {"more": 1}]), r"is no ledger of reproductions: 0\.more"),
        (lambda: json.dumps([vars(ENTRY) | {"rounds_of_paper": 0}]), r"0\.rounds_of_paper"),
        (lambda: json.dumps([vars(ENTRY) | {"ours": float("nan")}]), r"0\.ours"),
    ],
)
def test_what_is_no_ledger_is_refused_and_stays(tmp_path: Path, text: object, message: str) -> None:
    file = tmp_path / "ledger.json"
    file.write_text(text if isinstance(text, str) else text())  # type: ignore[operator]
    before = file.read_bytes()
    for use in (lambda: read_ledger(file), lambda: record(file, [ENTRY])):
        with pytest.raises(InputError, match=message) as error:
            use()
        assert "ledger.json" in str(error.value)
        assert "\n" not in str(error.value)
    assert file.read_bytes() == before


def test_processes_that_record_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    file, entries = tmp_path / "ledger.json", [replace(ENTRY, seeds=[seed]) for seed in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: record(file, [one]), entries))
    assert sorted(read_ledger(file), key=lambda one: one.seeds) == entries


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_full_disk_leaves_the_ledger_as_it_was(tmp_path: Path, share: float) -> None:
    file = tmp_path / "ledger.json"
    record(file, [ENTRY])
    before, other = file.read_bytes(), replace(ENTRY, seeds=[1])
    with files_up_to(int(share * 2 * len(before))), pytest.raises(InputError, match=r"ledger\.json cannot be written"):
        record(file, [other])
    assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"ledger.json", ".ledger.json.lock"}
    record(file, [other])
    assert len(read_ledger(file)) == 2


@pytest.mark.parametrize("place", ["flush_file", "check_fence"])
def test_ctrl_c_leaves_the_ledger_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """After the new content is written, and before it has the file's name."""
    file = tmp_path / "ledger.json"
    record(file, [ENTRY])
    before = file.read_bytes()

    def interrupted(*words: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            record(file, [replace(ENTRY, seeds=[1])])
    assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"ledger.json", ".ledger.json.lock"}
    record(file, [replace(ENTRY, seeds=[1])])
    assert len(read_ledger(file)) == 2, "the lock is free"


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="no clone")
def test_git_leaves_the_lock_alone() -> None:
    words = ["git", "-C", str(ROOT), "check-ignore", "docs/.reproductions.json.lock"]
    assert subprocess.run(words, capture_output=True, check=False, env=os.environ).returncode == 0


def test_the_papers_numbers_in_the_repositorys_ledger_are_the_recipes() -> None:
    for one in read_ledger(ROOT / "docs" / "reproductions.json"):
        [cell] = find_recipe(one.recipe).cells(one.cell)
        assert one.rounds_of_paper == cell.study().rounds
        if one.paper is not None:
            number = float(one.paper.split(" ")[0])
            printed = [block.values_by_method.get(one.method) for block in cell.published]
            assert number in [value[0] if isinstance(value, list) else value for value in printed if value is not None]

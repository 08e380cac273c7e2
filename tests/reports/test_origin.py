"""What computed the runs is read from their env.json, and nothing that stands there is trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedflat import __version__
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.reports.page import origin
from support.finished_runs import Fake


def stored(folder: Path, content: object) -> StoredRun:
    folder.mkdir(exist_ok=True)
    (folder / "env.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return StoredRun(RunDirectory(folder))


def segment(**changes: object) -> dict[str, object]:
    return {"started": "2026-01-31T10:00:00+00:00", "versions": {"fedflat": "0.1", "torch": "2.6"}} | changes


def test_version_commit_and_day_of_all_runs(tmp_path: Path) -> None:
    first = stored(tmp_path / "a", [segment(commit="1a2b3c")])
    later = segment(started="2026-02-02T00:00:00+00:00", versions={"fedflat": "0.2"}, commit="1a2b3c")
    assert origin([first]) == ["fedflat 0.1, torch 2.6", "commit 1a2b3c", "computed on 2026-01-31"]
    assert origin([first, stored(tmp_path / "b", [later])]) == [
        "fedflat 0.1 and 0.2, torch 2.6", "commit 1a2b3c", "computed on 2026-01-31 to 2026-02-02",
    ]  # fmt: skip


def test_outside_a_clone_there_is_no_commit(tmp_path: Path) -> None:
    assert origin([stored(tmp_path, [segment(commit=None)])]) == ["fedflat 0.1, torch 2.6", "computed on 2026-01-31"]


@pytest.mark.parametrize(
    "content",
    ["", "null", "[" * 5000, "[1]", {"versions": 3}, [{"versions": {"fedflat": "<script>"}, "commit": ["x"]}],
     [{"versions": {"fedflat": "9" * 500}, "started": 7, "commit": "a b"}]],
)  # fmt: skip
def test_what_is_damaged_or_hostile_is_left_out(tmp_path: Path, content: object) -> None:
    assert origin([stored(tmp_path, content)]) in ([], ["computed on 7"])


def test_a_run_in_no_folder_was_computed_by_this_process() -> None:
    [line] = origin([Fake("FedAvg", 0, [0.5])])
    assert line.startswith(f"fedflat {__version__}, torch ")

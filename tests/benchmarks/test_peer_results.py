from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer_results import read_peers
from support.files import refused

ONE: dict[str, Any] = {
    "peer": "FL-Simulator", "version": "502bec6", "work": "W1", "method": "SCAFFOLD", "threads": 1,
    "seconds": [6.5, 6.25], "wall": [7.0, 7.5], "includes": "augmentation", "scaled": "2 of 10 clients, times 5",
}  # fmt: skip


def written(folder: Path, *results: dict[str, Any]) -> Path:
    path = folder / "peer.json"
    path.write_text(json.dumps({"results": results}))
    return path


def test_results_become_measurements_under_our_names(tmp_path: Path) -> None:
    [found] = read_peers(written(tmp_path, ONE))
    assert (found.part, found.name) == ("W1", "FL-Simulator Scaffold")
    assert (found.cpu, found.wall) == ([6.5, 6.25], [7.0, 7.5])
    assert found.alone
    assert found.facts["includes"] == "augmentation"
    assert found.facts["peer"] == "FL-Simulator"


def test_frameworks_are_known_however_they_are_written(tmp_path: Path) -> None:
    found = read_peers(written(tmp_path, ONE | {"peer": "PFL_research", "method": "fedavg"}, ONE | {"peer": "Other"}))
    assert [one.name for one in found] == ["pfl-research fedavg", "Other Scaffold"]


def test_a_field_that_is_missing_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, {name: value for name, value in ONE.items() if name != "wall"})
    with refused(str(path), "'wall'"):
        read_peers(path)


@pytest.mark.parametrize("text", ["", "[]", '{"results": 3}', '{"results": [3]}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "peer.json"
    path.write_text(text)
    with refused(str(path)):
        read_peers(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with refused("nothing.json"):
        read_peers(tmp_path / "nothing.json")

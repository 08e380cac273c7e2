from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measurement import Measurement
from benchmarks.results import Results, Settings, described, started
from support.files import refused

OURS = Measurement("W1", "FedAvg", [1.0, 2.0], [3.0, 4.0], facts={"executor": "Sequential"})
PEER = Measurement("W1", "Flower FedAvg", [5.0], [6.0], facts={"peer": "Flower"}, alone=True)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    results = Results(described(Settings()), {"W1": {"steps": 8}}, [OURS, PEER])
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results


def test_a_part_that_is_measured_again_replaces_itself_and_nothing_else() -> None:
    other = Measurement("W2", "FedAvg", [1.0])
    again = Measurement("W1", "FedSAM", [7.0])
    results = Results({}, {"W1": {"steps": 8}}, [OURS, PEER, other]).with_part("W1", {"steps": 9}, [again])
    assert results.every == [PEER, other, again]
    assert results.parts == {"W1": {"steps": 9}}


def test_other_frameworks_replace_what_they_took_before() -> None:
    faster = Measurement("W1", "Flower FedAvg", [4.0], [4.0], alone=True)
    assert Results({}, {}, [OURS, PEER]).with_peers([faster]).every == [OURS, faster]


def test_a_file_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert started(Settings(), path).every == []
    Results(described(Settings()), {}, [OURS]).save(path)
    assert started(Settings(), path).every == [OURS]


@pytest.mark.parametrize(
    ("changed", "named"), [({"threads": 2}, "threads"), ({"repeats": 3}, "repeats"), ({"quick": True}, "quick")]
)
def test_but_not_to_one_of_other_settings(tmp_path: Path, changed: dict, named: str) -> None:
    path = tmp_path / "results.json"
    Results(described(Settings()), {}, [OURS]).save(path)
    with refused(str(path), named):
        started(Settings(**changed), path)


def test_nor_to_one_of_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    here = described(Settings())
    Results(here | {"machine": here["machine"] | {"processor": "abacus"}}).save(path)
    with refused(str(path), "abacus"):
        started(Settings(), path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 2, "settings": {}}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(text)
    with refused(str(path)):
        started(Settings(), path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused("cannot be written"):
        Results({}).save(tmp_path / "missing" / "results.json")


def test_every_time_is_in_the_file(tmp_path: Path) -> None:
    Results({}, {}, [OURS]).save(tmp_path / "results.json")
    [one] = json.loads((tmp_path / "results.json").read_text())["measurements"]
    assert (one["cpu"], one["wall"]) == ([1.0, 2.0], [3.0, 4.0])

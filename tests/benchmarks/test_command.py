from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_part_is_measured_shown_and_written(bench, tmp_path: Path) -> None:
    code, out, _ = bench("augmentation --quick --repeats 2 --out b.json")
    assert code == 0
    assert "augmentation" in out
    assert "≤ 0.5 ms" in out
    assert "not measured" not in out
    content = json.loads((tmp_path / "b.json").read_text())
    [one] = content["measurements"]
    assert len(one["cpu"]) == 2
    assert content["settings"]["quick"]


def test_mistakes_are_told_before_anything_is_measured(bench, tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text("{}")
    for line, named in (("W9", "W9"), ("augmentation --peers peers.json", "peers.json"),
                        ("augmentation --out peers.json", "peers.json")):  # fmt: skip
        code, _, error = bench(line)
        assert code == 2
        assert named in error
        assert len(error.splitlines()) == 1

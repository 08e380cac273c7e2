"""The program of docs/howto/coming_from.md reads files as PFLlib writes them: a pickled dictionary for each client."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "coming_from.md"


def test_the_program_trains_on_the_files_of_each_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    numbers = {"train": (11, 12, 13), "test": (3, 4, 5)}
    for part, sizes in numbers.items():
        (tmp_path / part).mkdir()
        for client, n in enumerate(sizes):
            samples = {"x": draw.random((n, 1, 8, 8), dtype="float32"), "y": np.arange(n) % 3}
            np.savez_compressed(tmp_path / part / f"{client}.npz", data=samples)  # type: ignore[arg-type]
    [program] = re.findall(r":caption: from_pfllib\.py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    monkeypatch.setattr(sys, "argv", ["from_pfllib.py", str(tmp_path), "3"])
    names: dict[str, Any] = {}
    exec(compile(program.replace("rounds=10", "rounds=1"), str(PAGE), "exec"), names)
    assert tuple(names["data"].sizes) == numbers["train"]
    assert tuple(names["run"].clients.samples) == numbers["test"]

"""Damage to any file that decides is refused or made good, and named by `verify`: no result changes in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.damages import FOLDERS
from support.effort import effort


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLDERS)
def test_no_damage_changes_a_result_in_silence(kind: str, tmp_path: Path) -> None:
    trial = FOLDERS[kind](tmp_path / "folder")
    trial.carry_out(effort(12, 600))
    assert trial.wrong == []
    assert set(trial.tried) == set(trial.files)

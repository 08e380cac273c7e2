from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own, and no data folder but what it names."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDFLAT_CACHE", str(folder))
    monkeypatch.delenv("FEDFLAT_DATA", raising=False)
    return folder

from __future__ import annotations

import pytest

from fedflat import files


@pytest.fixture(autouse=True)
def _no_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """That files are on the disk before their names is tested elsewhere; hundreds of sessions would wait for it."""
    monkeypatch.setattr(files, "_flush", lambda path, flags: None)

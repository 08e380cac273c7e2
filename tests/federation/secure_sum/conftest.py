from __future__ import annotations

import pytest

from fedflat import operating_system


@pytest.fixture(autouse=True)
def _no_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """That files are on the disk before their names is tested elsewhere; hundreds of sessions would wait for it."""
    monkeypatch.setattr(operating_system, "_sync", lambda path, flags: None)

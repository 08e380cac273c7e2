from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
OURS = {path.stem for path in PEERS.glob("*.py")}
THEIRS = {"server", "utils"}  # of the stand-in for a checkout


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts can be imported, and leave none of their modules with common names behind."""
    monkeypatch.syspath_prepend(PEERS)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS | THEIRS]:
        del sys.modules[name]

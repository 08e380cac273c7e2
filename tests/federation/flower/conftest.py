from __future__ import annotations

from collections.abc import Iterator

import pytest

from cli.conftest import fedflat
from fedflat.federation.flower import transport
from support.virtual_time import passing_at_once

__all__ = ["fedflat"]


@pytest.fixture(autouse=True, scope="module")
def _no_pauses() -> Iterator[None]:
    """The in-process grid has every reply at once, so there is nothing to pause for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "POLL_SECONDS", 0.001)
        patch.setattr(transport, "SCAN_SECONDS", 0.0)
        yield


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Deadlines pass at once. A test that looks at a clock must not have this."""
    with passing_at_once():
        yield

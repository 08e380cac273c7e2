"""How much a test does: a bounded share usually, all of it when FEDFLAT_LONG is set."""

from __future__ import annotations

import os


def effort(usual: int, long: int) -> int:
    """`usual`, or `long` where the environment variable FEDFLAT_LONG is set."""
    return long if os.environ.get("FEDFLAT_LONG") else usual

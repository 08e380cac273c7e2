from __future__ import annotations

from cli.conftest import fedflat

__all__ = ["fedflat"]

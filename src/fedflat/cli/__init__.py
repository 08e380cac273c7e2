"""The command line: it parses, calls, and prints; the work is done elsewhere."""

from __future__ import annotations

from .app import main

__all__ = ["main"]

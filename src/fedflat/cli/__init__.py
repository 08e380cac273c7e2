"""The command line: it parses, calls, and prints; the work is done elsewhere.

A module of a command imports what the command works with inside the command's function, so that `--help`, `--version`
and the shell's completion need neither torch nor the libraries around it, which take seconds to import.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]

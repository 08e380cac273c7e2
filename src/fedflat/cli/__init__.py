"""The command line: it parses arguments, calls the other packages of fedflat, and prints.

Imports that take seconds, such as torch, are inside the functions of commands, so that `--help`, `--version` and
completion by the shell start at once.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]

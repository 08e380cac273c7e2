"""The commit of the code that computes, where it runs from a clone."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
SECONDS = 10  # that git may take; without an answer nothing is said


@cache
def commit_of_code() -> str | None:
    """The commit of the clone that this package is in, with `-dirty` if files differ from it; None without a clone."""
    git, root = shutil.which("git"), PACKAGE.parents[1]
    if git is None or PACKAGE.parent.name != "src" or not (root / ".git").exists():
        return None
    # A program that the clone names as its fsmonitor is not started.
    settings = ["-C", str(root), "-c", "core.fsmonitor=false"]
    command = [git, *settings, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # nothing is written to the clone
    try:
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603 (all its words are ours)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None

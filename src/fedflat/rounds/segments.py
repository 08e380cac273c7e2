"""The versions and the code that computed the rounds of a run. A new segment begins where one of them changes."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..core import method as interface
from ..core.errors import ChangedWarning, InputError
from ..core.method import Method
from ..core.wrapper import chain

DECISIVE = ("fedflat", "torch", "numpy")  # packages whose version can change a bit of a round
PACKAGE = Path(__file__).parents[1]
SECONDS = 10  # time limit of git; without an answer the commit is unknown
UNKNOWN = "unknown"  # the digest of code that is in no file, such as a notebook's


@dataclass(frozen=True)
class Segment:
    """The rounds from `start` to the beginning of the next segment."""

    start: int  # the first round
    versions: Mapping[str, str | None]  # by package
    code: str  # digest of the method's source, 16 hexadecimal digits

    @classmethod
    def now(cls, start: int, method: Method) -> Segment:
        """Return the segment of rounds of `method` that this process computes from round `start`."""
        return cls(start, versions(DECISIVE), code_digest(method))

    def changes(self, since: Segment) -> list[str]:
        """Describe the differences from the segment `since`. A value that one segment lacks is no difference."""
        found = [
            f"{name} was {since.versions.get(name)}, now it is {mine}"
            for name, mine in self.versions.items()
            if since.versions.get(name, mine) != mine
        ]
        if self.code != since.code and UNKNOWN not in (self.code, since.code):
            found.append(f"the method's code was {since.code}, now it is {self.code}")
        return found


def following(segments: list[Segment], now: Segment, checkpoint: Path, strict: bool) -> list[Segment]:
    """Return the segments of a run with `segments` so far, which continues from `checkpoint` in the segment `now`.

    If something has changed, warns with a ChangedWarning; with `strict` raises InputError.
    """
    changes = "; ".join(now.changes(segments[-1]))
    if not changes:
        return segments
    if strict:
        raise InputError(f"checkpoint {checkpoint}: {changes}; without --strict the run continues")
    message = f"{checkpoint}: {changes}; the rounds that follow may have other bits"
    warnings.warn(message, ChangedWarning, stacklevel=3)
    return [*segments, now]


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """Return the installed version of each package, None where it is absent."""
    return {name: _version(name) for name in packages}


@cache
def _version(package: str) -> str | None:
    if package == "torch":
        return str(torch.__version__)  # with the build, such as +cpu
    if package == "fedflat":
        # Of the code that runs: an update of a clone changes it without a new installation.
        return str(sys.modules[PACKAGE.name].__version__)
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def code_digest(method: Method) -> str:
    """Return the digest of the sources of a method and of methods it wraps; `UNKNOWN` if one is in no file."""
    digests = [source_digest(type(one)) for one in chain(method)]
    if len(digests) == 1 or UNKNOWN in digests:
        return UNKNOWN if UNKNOWN in digests else digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


@cache
def source_digest(kind: type[Method]) -> str:
    """Return 16 hexadecimal digits that change with the source of a method; `UNKNOWN` if a part is in no file.

    The source is the method's file, the files of the methods it inherits from, and `core`, which has the local round,
    the oracle and the records.
    """
    files: set[Path | None] = {_file(cls) for cls in kind.__mro__ if issubclass(cls, Method)}
    files |= {*Path(inspect.getfile(interface)).parent.glob("*.py")}
    if None in files:
        return UNKNOWN
    contents = [(path.name, path.read_bytes()) for path in files if path is not None]
    sums = sorted(f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in contents)
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()[:16]


def _file(cls: type[Any]) -> Path | None:
    """Return the source file that defines a class; None if the class has no source file."""
    found = getattr(sys.modules.get(cls.__module__), "__file__", None)
    path = Path(found) if found else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


@cache
def commit_of_code() -> str | None:
    """Return the commit of the clone that holds this package; None without a clone.

    It ends with `-dirty` if files differ, other than those in docs/, which hold texts and results and no code.
    """
    git, root = shutil.which("git"), PACKAGE.parents[1]
    if git is None or PACKAGE.parent.name != "src" or not (root / ".git").exists():
        return None
    # A program that the clone names as its fsmonitor is not started.
    command = [git, "-C", str(root), "-c", "core.fsmonitor=false"]
    head = _answer([*command, "describe", "--always", "--abbrev=12", "--exclude=*"])
    same = _answer([*command, "diff", "--quiet", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".", ":!docs"])
    if head is None or head.returncode or same is None or same.returncode not in (0, 1):
        return None
    return f"{head.stdout.strip()}{'-dirty' if same.returncode else ''}"


def _answer(command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Return what git answers; None if it cannot be started or does not answer in time."""
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}  # nothing is written to the clone
    try:
        return subprocess.run(command, env=quiet, capture_output=True, encoding="utf-8", timeout=SECONDS, check=False)  # noqa: S603 (all its words are ours)
    except (OSError, subprocess.SubprocessError):
        return None

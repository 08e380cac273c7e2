"""With which versions and which code the rounds of a run were carried out: a segment for every change of them."""

from __future__ import annotations

import hashlib
import inspect
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ..core import method as interface
from ..core.errors import ChangedWarning, InputError
from ..core.method import Method

DECISIVE = ("fedflat", "torch", "numpy")  # packages whose version can change a bit of a round
UNKNOWN = "unknown"  # code that is in no file, such as a notebook's, or of a state that did not say


@dataclass(frozen=True)
class Segment:
    """Rounds from `start` on, until the next segment."""

    start: int  # the first round
    versions: Mapping[str, str | None]  # by package
    code: str  # digest of the method's source, 16 hexadecimal digits

    @classmethod
    def now(cls, start: int, method: Method) -> Segment:
        """What rounds of `method` would be carried out with in this process."""
        return cls(start, versions(DECISIVE), source_digest(type(method)))

    def changes(self, since: Segment) -> list[str]:
        """What differs from `since`, in words; nothing where one of them does not know."""
        found = [
            f"{name} was {since.versions.get(name)}, now it is {mine}"
            for name, mine in self.versions.items()
            if since.versions.get(name, mine) != mine
        ]
        if self.code != since.code and UNKNOWN not in (self.code, since.code):
            found.append(f"the method's code was {since.code}, now it is {self.code}")
        return found


def following(segments: list[Segment], now: Segment, state: Path, strict: bool) -> list[Segment]:
    """The segments of a run that goes on from `state`, which has `segments`, with what is here `now`.

    If something has changed, that is a ChangedWarning, and with `strict` an InputError.
    """
    unknown = "it is of format 1, and says neither its checksum nor with which versions it was made"
    changes = "; ".join(now.changes(segments[-1])) if segments else unknown
    if changes and strict:
        raise InputError(f"checkpoint {state}: {changes}; without --strict it is gone on from")
    if changes:
        told = f"{state}: {changes}; the rounds that follow may have other bits"
        warnings.warn(told, ChangedWarning, stacklevel=3)
    return [*segments, now] if changes else segments


def stored(segments: Sequence[Segment]) -> list[dict[str, Any]]:
    """As JSON can hold them."""
    return [asdict(segment) for segment in segments]


def read_segments(content: Any) -> list[Segment]:
    """What `stored` gave; states of format 1 have none. Raises KeyError or TypeError for anything else."""
    return [Segment(int(one["start"]), dict(one["versions"]), str(one["code"])) for one in content or ()]


def versions(packages: Sequence[str]) -> dict[str, str | None]:
    """The installed version of each package, None where it is absent."""
    return {name: _version(name) for name in packages}


@cache
def _version(package: str) -> str | None:
    if package == "torch":
        return str(torch.__version__)  # with the build, such as +cpu
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def source_digest(kind: type[Method]) -> str:
    """Sixteen hexadecimal digits of the source of a method: its file, those of the methods it is made from, and `core`,
    which has the local round, the oracle and the records. `UNKNOWN` if one of them is in no file."""
    files = {_file(cls) for cls in kind.__mro__ if issubclass(cls, Method)} | {*_core()}
    if None in files:
        return UNKNOWN
    contents = [(path.name, path.read_bytes()) for path in files if path is not None]
    sums = sorted(f"{name} {hashlib.sha256(content).hexdigest()}" for name, content in contents)
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()[:16]


def _core() -> list[Path]:
    return sorted(Path(inspect.getfile(interface)).parent.glob("*.py"))


def _file(cls: type[Any]) -> Path | None:
    """The file that a class is written in."""
    found = getattr(sys.modules.get(cls.__module__), "__file__", None)
    path = Path(found) if found else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None

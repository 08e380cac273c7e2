"""The file of results: what was measured, and everything it depends on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedflat.core.errors import InputError
from fedflat.core.native_libraries import SWITCH
from fedflat.experiments.run_directory import RECORDED
from fedflat.files import write_atomically
from fedflat.rounds.segments import versions

from .measurement import Measurement, Measurements

FORMAT = 1
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")  # of processors, that the times depend on


@dataclass(frozen=True)
class Settings:
    """How it is measured."""

    repeats: int = 7
    threads: int = 1
    quick: bool = False

    @property
    def warm_ups(self) -> int:
        """Runs of everybody before the first time is taken."""
        return 1 if self.quick else 2


@dataclass(frozen=True)
class Results:
    """Measurements with their settings."""

    settings: dict[str, Any]
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # what is done in each part, and when
    every: list[Measurement] = field(default_factory=list)

    @property
    def measured(self) -> Measurements:
        """The measurements by name."""
        return Measurements(self.every)

    def with_part(self, part: str, facts: dict[str, Any], found: Sequence[Measurement]) -> Results:
        """Return these results, with `part` measured anew; what other frameworks took stays."""
        kept = [one for one in self.every if one.part != part or one.alone]
        return Results(self.settings, self.parts | {part: facts}, [*kept, *found])

    def with_peers(self, found: Sequence[Measurement]) -> Results:
        """Return these results, and what other frameworks took, instead of older measurements of the same name."""
        names = {(one.part, one.name) for one in found}
        kept = [one for one in self.every if (one.part, one.name) not in names]
        return Results(self.settings, self.parts, [*kept, *found])

    def save(self, path: Path) -> None:
        """Write everything as JSON. Raises InputError if it cannot be written."""
        content = {"format": FORMAT, "settings": self.settings, "parts": self.parts}
        text = json.dumps(content | {"measurements": [asdict(one) for one in self.every]}, indent=1)
        write_atomically(path, lambda file: file.write_text(text + "\n"))

    @classmethod
    def load(cls, path: Path) -> Results:
        """Return what `save` wrote. Raises InputError if the file holds something else."""
        try:
            content = json.loads(path.read_text())
            if content["format"] != FORMAT:
                raise InputError(f"{path} has format {content['format']}, this version reads {FORMAT}")
            return cls(content["settings"], content["parts"], [Measurement(**one) for one in content["measurements"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{path} holds no results of a benchmark: {str(error).splitlines()[0]}") from error


def started(settings: Settings, path: Path | None) -> Results:
    """Return empty results, or those in the file `path` to be added to.

    Raises InputError if the file holds something else, or results of other settings, versions or another machine.
    """
    here = described(settings)
    if path is None or not path.exists():
        return Results(here)
    found = Results.load(path)
    for name, value in here.items():
        if found.settings.get(name) != value:
            raise InputError(
                f"--out {path} was measured with {name} = {found.settings.get(name)}, now it is {value}; "
                "choose another file"
            )
    return found


def described(settings: Settings) -> dict[str, Any]:
    """Return settings, versions and machine, as JSON-able values."""
    return asdict(settings) | {
        "versions": versions(RECORDED) | {"python": platform.python_version()},
        "machine": machine(),
        "allocator": os.environ.get(SWITCH) or "tuned",
    }


def machine() -> dict[str, Any]:
    """Return processor, cores and C library."""
    lines = _cpuinfo()
    flags = lines.get("flags", "").split()
    return {
        "processor": lines.get("model name", platform.processor()),
        "features": [name for name in FEATURES if name in flags],
        "cores": os.cpu_count(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "libc": " ".join(platform.libc_ver()),
    }


def _cpuinfo() -> dict[str, str]:
    """Return what Linux says of the first processor; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def now() -> dict[str, Any]:
    """Return the time, and how busy the machine is: processes that run or wait to run, mean of the last minute."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"at": datetime.now(UTC).isoformat(timespec="seconds"), "load": load}

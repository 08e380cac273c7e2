"""The systemd units of a federation's programs, which systemd keeps in a sandbox."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from ...core.errors import InputError
from ...files import make_folder, write_text

NAMES = ("fedflat-superlink.service", "fedflat-superexec.service", "fedflat-supernode.service")


def unit_text(name: str) -> str:
    """Return the text of the unit with this file name."""
    return (files(__package__) / "units" / name).read_text(encoding="utf-8")


def write_units(folder: Path) -> list[Path]:
    """Write the units to `folder`, and return their paths. Raises InputError, writing nothing, if a file exists."""
    paths = [folder / name for name in NAMES]
    for path in paths:
        if path.exists():
            raise InputError(f"{path} is there already; move it away, or choose another folder")
    make_folder(folder)
    for path in paths:
        text = unit_text(path.name)
        write_text(path, text)
    return paths

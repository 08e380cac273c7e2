"""`fedflat doctor`: what this installation has."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, requires

import torch
import typer
from packaging.requirements import Requirement

from ..experiments.environment import device_name, versions
from .console import Console


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor() -> None:
    """Print versions, cores and device, and what each optional extra lacks."""
    console = Console()
    lines = [f"python      {platform.python_version()}", f"platform    {platform.platform()}"]
    core, extras = _requirements()
    lines += [f"{name:<20} {version or 'MISSING'}" for name, version in versions(("fedflat", *core)).items()]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lines += [
        f"cores       {os.cpu_count()} (torch uses {torch.get_num_threads()} threads)",
        f"device      {device_name(device)}",
    ]
    for extra, packages in extras.items():
        lacking = [name for name, version in versions(tuple(packages)).items() if version is None]
        lines.append(f"extra {extra:<12} " + (f"lacks {', '.join(lacking)}" if lacking else "complete"))
    console.say(*lines)


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """The packages that fedflat needs, and those of each extra, as its metadata declares them."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        declared = [Requirement(text) for text in requires("fedflat") or ()]
    except PackageNotFoundError:
        declared = []
    for requirement in declared:
        extra = _extra(requirement)
        (core if extra is None else extras.setdefault(extra, [])).append(requirement.name)
    return core, extras


def _extra(requirement: Requirement) -> str | None:
    text = str(requirement.marker or "")
    return text.split("extra ==")[1].strip().strip("\"'") if "extra ==" in text else None

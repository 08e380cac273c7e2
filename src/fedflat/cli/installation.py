"""What this installation has: `fedflat methods` and `fedflat doctor`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import typer

from ..reports.listing import method_rows, method_table
from .completion import method_names
from .console import Console


def methods(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method, e.g. FedSMOO; case, - and _ are ignored. Or your own, my.py:Mine, whose file is run.",
            autocompletion=method_names,
        ),
    ] = None,
) -> None:
    """List all methods with their cost and paper, or print one: equations, fields, cost and BibTeX."""
    console = Console()
    if name is None:
        return console.show(method_table(method_rows(), console.width))
    from ..core.object_references import allow_code
    from ..methods import find
    from ..reports.catalogue import describe

    context.with_resource(allow_code())  # what the user's own command line names
    console.say(*describe(find(name)).split("\n"))


def doctor(
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE", help="Try training on it for about a minute, e.g. cuda: agreement of executors, speed."
        ),
    ] = None,
) -> None:
    """Print versions, cores and device, and what each optional extra lacks; or try training on a device."""
    if device is None:
        _print_installation()
    else:
        _try_device(device)


def _try_device(name: str) -> None:
    """Print what a trial of the device called `name` finds. The exit code is 1 unless all of it is as it should be."""
    import platform

    import torch

    from ..engine.trials import device_trial
    from ..rounds.device import usable_device
    from ..rounds.segments import versions

    console, device, passed = Console(), usable_device(name), True
    found = [f"{package} {version}" for package, version in versions(("fedflat", "torch", "numpy")).items()]
    console.say(f"{', '.join(found)}, CUDA {torch.version.cuda or 'none'}, Python {platform.python_version()}, "
                f"{platform.platform()}")  # fmt: skip
    for finding in device_trial(device):
        console.say(f"{'' if finding.passed else 'WRONG: '}{finding.part}: {finding.text}")
        passed = passed and finding.passed
    console.say("Please report these lines if the device is a GPU: the tests of fedflat have not run on one.")
    if not passed:
        raise typer.Exit(1)


def _print_installation() -> None:
    """Print versions, cores and device, and what each optional extra lacks."""
    import os
    import platform

    import torch

    from ..rounds.device import device_name
    from ..rounds.segments import versions

    core, extras = _requirements()
    lines = [f"python      {platform.python_version()}", f"platform    {platform.platform()}"]
    lines += [f"{name:<20} {version or 'MISSING'}" for name, version in versions(("fedflat", *core)).items()]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lines += [
        f"cores       {os.cpu_count()} (torch uses {torch.get_num_threads()} threads)",
        f"device      {device_name(device)}",
    ]
    for extra, packages in extras.items():
        missing = [name for name, version in versions(tuple(packages)).items() if version is None]
        lines.append(f"extra {extra:<12} " + (f"lacks {', '.join(missing)}" if missing else "complete"))
    Console().say(*lines)


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """The packages that fedflat needs, and those of each extra, as its metadata declares them."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    core: list[str] = []
    extras: dict[str, list[str]] = {}
    with suppress(PackageNotFoundError):
        for requirement in map(Requirement, requires("fedflat") or ()):
            _, is_extra, extra = str(requirement.marker or "").partition("extra ==")
            names = extras.setdefault(extra.strip().strip("\"'"), []) if is_extra else core
            names.append(requirement.name)
    return core, extras

"""The commands about the installation and about users' own code: `doctor`, `new` and `check-method`."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import BrokenPromiseError, InputError, printable
from .console import Console

if TYPE_CHECKING:
    from ..core.method import Method
NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
KINDS = {  # by kind: the name of the example in the template, and the commands that try a copy of it
    "method": ("FedExample", "fedflat check-method {file}:{name}\nfedflat run --method {file}:{name} --rounds 20"),
    "model": ("example", "fedflat run --model {file}:{name} --rounds 20"),
    "data": ("example", "fedflat run --data.name {file}:{name} --data.clients 10 --rounds 20"),
}
KindArgument = Annotated[str, typer.Argument(metavar="method|model|data", help="Kind of code to begin.")]
NameArgument = Annotated[str, typer.Argument(help="Name in small letters, such as my_method, for the file NAME.py.")]


def doctor(
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Test training on this device for about a minute, e.g. cuda: agreement of executors, speed.",
        ),
    ] = None,
) -> None:
    """Print versions, cores, device, and what this system does not offer; or test training on a device."""
    if device is None:
        _print_installation()
    else:
        _try_device(device)


def _try_device(name: str) -> None:
    """Print the results of a trial of the device `name`. The exit code is 1 if a check fails."""
    import platform

    import torch

    from ..core.torch_module import WITHOUT_FLOAT64
    from ..engine.trials import device_trial
    from ..rounds.device import usable_device
    from ..rounds.segments import versions

    console, device, passed = Console(), usable_device(name), True
    if device.type in WITHOUT_FLOAT64:
        raise InputError(f"--device {name}: the test compares results in float64, which this device lacks")
    packages = [f"{package} {version}" for package, version in versions(("fedflat", "torch", "numpy")).items()]
    console.say(f"{', '.join(packages)}, CUDA {torch.version.cuda or 'none'}, Python {platform.python_version()}, "
                f"{platform.platform()}")  # fmt: skip
    for finding in device_trial(device):
        console.say(f"{'' if finding.passed else 'WRONG: '}{finding.part}: {finding.text}")
        passed = passed and finding.passed
    console.say("Please report these lines if the device is a GPU: the tests of fedflat have not run on one.")
    if not passed:
        raise typer.Exit(1)


def _print_installation() -> None:
    """Print versions, cores, device, the missing packages of each extra, and what this system does not offer."""
    import os
    import platform

    import torch

    from ..operating_system import not_offered
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
    lines.append(f"not offered {', '.join(not_offered()) or 'nothing: this system has everything'}")
    Console().say(*lines)


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Return the packages that fedflat needs, and the packages of each extra, from the metadata of fedflat."""
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


def new(kind: KindArgument, name: NameArgument) -> None:
    """Write a small working file and its test, to start a method, a model or a data set of your own.

    fedflat new method fed_mine

    writes fed_mine.py and test_fed_mine.py in this folder. Both work unchanged: edit them step by step.
    """
    if kind not in KINDS:
        raise InputError(f"{printable(kind)}: there are skeletons of a {', a '.join(KINDS)}")
    if not NAME.fullmatch(name):
        raise InputError(f"NAME {printable(name)!r} must be small letters, digits and _, such as my_{kind}")
    example, commands = KINDS[kind]
    own = "".join(part.capitalize() for part in name.split("_")) if kind == "method" else name
    written = {f"{name}.py": f"{kind}.py", f"test_{name}.py": f"test_{kind}.py"}
    for file in written:
        if Path(file).exists():
            raise InputError(f"{file} exists already; choose another name")
    for file, template in written.items():
        text = files("fedflat.templates").joinpath(template).read_text(encoding="utf-8")
        text = re.sub(rf"\b(from |fedflat .*?){kind}(\.py:| import )", rf"\g<1>{name}\2", text)
        Path(file).write_text(re.sub(rf"\b{example}\b", own, text), encoding="utf-8")
    tests = [*([] if find_spec("pytest") else ["pip install pytest"]), f"pytest test_{name}.py"]
    steps = [*tests, *commands.format(file=f"{name}.py", name=own).split("\n")]
    Console().say(f"wrote {' and '.join(written)}; both work unchanged:", *(f"  {step}" for step in steps))


def check_method(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="METHOD", help="my_method.py:MyMethod, package.module:MyMethod or a name.")
    ],
) -> None:
    """Check that a method keeps every promise that fedflat relies on: shapes, stacks, checkpoints, ranges, annotations.

    fedflat check-method fed_mine.py:FedMine

    The exit code is 0 if every promise is kept, and 1 if one is broken. This runs the code of the file.
    """
    from ..core.method_contract import CONTRACT
    from ..core.object_references import allow_code
    from ..engine.trials import TRIALS
    from ..methods import find

    context.with_resource(allow_code())
    console, method, broken = Console(), find(name)(), 0
    for promise, check in {**CONTRACT, **TRIALS}.items():
        problem = _problem(check, method)
        broken += problem is not None
        console.say(f"{'kept   ' if problem is None else 'broken '} {promise}" + (f": {problem}" if problem else ""))
    console.say(f"{broken} of {len({**CONTRACT, **TRIALS})} promises are broken" if broken else "all promises are kept")
    if broken:
        raise typer.Exit(code=1)


def _problem(check: Callable[[Method], None], method: Method) -> str | None:
    """Return in one line how `method` breaks the promise that `check` tests; None if the method keeps the promise."""
    from ..core.user_code import class_title, method_errors_named

    try:
        with method_errors_named(method):
            check(method)
    except Exception as error:  # the user's code may raise anything
        text = str(error).splitlines()[0] if str(error) else ""
        if isinstance(error, BrokenPromiseError | InputError):
            return text.removeprefix(f"method {class_title(type(method))}: ")
        file = inspect.getsourcefile(type(method))  # if the error was raised in this file, its line is named
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        return f"{type(error).__name__}: {text}" + (f" (line {lines[-1]})" if lines else "")
    return None

"""What the code of a function refers to: variables of the functions around it, and globals."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any


def codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant)


def closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the variables of functions around `function`, by name, that are set."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it is not set yet
            continue
    return found


def global_names(function: FunctionType, *operations: str) -> set[str]:
    """Return the names of globals that code in `function` reaches by one of `operations`, such as LOAD_GLOBAL."""
    steps = (step for code in codes_of(function.__code__) for step in dis.get_instructions(code))
    return {step.argval for step in steps if step.opname in operations}

"""Plants a defect of benchmarks/planted_defects.toml into the modules of this process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.planted_defects import read

ROOT = Path(__file__).parents[2]


def plant(name: str, patch: pytest.MonkeyPatch) -> None:
    """Put modules with the defect in place of those that are loaded, wherever something of theirs was imported.

    Skips the test where the defect is there already: in the copies of `python -m benchmarks.planted_defects`, whose
    tests must not fail because it cannot be planted twice.
    """
    [defect] = [one for one in read(before=False)[0] if one.name == name]
    text = (ROOT / defect.file).read_text()
    if defect.old not in text and defect.new in text:
        pytest.skip(f"{name} is planted already")
    for file, text in defect.planted(ROOT).items():
        before = importlib.import_module(file.removeprefix("src/").removesuffix(".py").replace("/", "."))
        _replace(before, _module(before, text, patch), patch)


def _module(before: ModuleType, text: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the same name with another text."""
    module = ModuleType(before.__name__)
    module.__dict__.update(__file__=before.__file__, __package__=before.__package__)
    patch.setitem(sys.modules, before.__name__, module)
    exec(compile(text, str(before.__file__), "exec"), module.__dict__)
    return module


def _replace(before: ModuleType, after: ModuleType, patch: pytest.MonkeyPatch) -> None:
    own: dict[int, Any] = {
        id(value): vars(after)[name]
        for name, value in vars(before).items()
        if getattr(value, "__module__", None) == before.__name__
    }
    own[id(before)] = after
    for module in [one for name, one in sys.modules.items() if name.startswith(("fedflat", "support"))]:
        for name, value in list(vars(module).items()):
            if id(value) in own and module is not after and value is not own[id(value)]:
                patch.setattr(module, name, own[id(value)])

"""What the type checker sees of a method: planted mistakes are caught, the same class without them is clean."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HEAD = """
from __future__ import annotations
from dataclasses import replace
from torch import Tensor
from fedflat.core.method import Citation
from fedflat.core.hyper import hyper
from fedflat.core.method import Context, Method
from fedflat.core.oracle import Oracle
from fedflat.core.records import Nothing, Record, Vector

class Server(Record):
    w: Vector
    m: Vector

class Down(Record):
    w: Vector

class Up(Record):
    delta: Vector
    g: Vector

class Mine(Method, server=Server, down=Down, up=Up):
    paper = Citation("k", "A, B", "T", "V", 2020)
    rho: float = hyper(0.1, "radius")

    def step(self, w: Tensor, client: Nothing, down: Down, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        return grad(w), client

    def finish(self, w: Tensor, client: Nothing, down: Down, ctx: Context) -> tuple[Up, Nothing]:
        return Up(delta=w - down.w, g=w), client

    def update(self, server: Server, mean: Up, ctx: Context) -> Server:
        return replace(server, w=server.w + mean.delta)
"""

STEP, OTHER = "\n    def step", "\n    def other(self) -> Mine:\n        return Mine(roh=1)\n\n    def step"

MISTAKES = {  # what is replaced, by what, and what the checker then says
    "a field of another record": ("grad(w), client", "grad(w) + down.m, client", '"Down" has no attribute "m"'),
    "a forgotten field": ("w - down.w, g=w)", "w - down.w)", 'Missing (named|positional) argument "g"'),
    "a misspelt hyper-parameter": ("grad(w), client", "self.roh * grad(w), client", '"Mine" has no attribute "roh"'),
    "a misspelt argument": (STEP, OTHER, 'Unexpected keyword argument "roh"'),
    "state on self": ("return grad", "self.rho = 2.0\n        return grad", '"rho".*read-only'),
    "a wrong record": ("return replace(server, w=server.w + mean.delta)", "return mean", "Incompatible return value"),
}


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """mypy's output on each variant; one run for all, which is what takes the time."""
    folder = tmp_path_factory.mktemp("types")
    variants = {"clean": HEAD} | {name: HEAD.replace(old, new, 1) for name, (old, new, _) in MISTAKES.items()}
    files = {name: folder / f"variant_{i}.py" for i, name in enumerate(variants)}
    for name, text in variants.items():
        files[name].write_text(text)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")]
    done = subprocess.run(
        [*command, *map(str, files.values())], capture_output=True, text=True, timeout=300, cwd=root, check=False
    )
    lines = done.stdout.splitlines()
    return {name: "\n".join(line for line in lines if file.name in line) for name, file in files.items()}


def test_a_correct_method_is_clean(verdicts: dict[str, str]) -> None:
    assert verdicts["clean"] == ""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(verdicts: dict[str, str], mistake: str) -> None:

    assert re.search(MISTAKES[mistake][2], verdicts[mistake]), verdicts[mistake]

"""A new Python process: what it imports can be seen, and packages can be made to look as if they were missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fedflat

SOURCE = Path(fedflat.__file__).parents[1]
REFUSE = """
import gc, sys

gc.disable()  # imports take a sixth less time, and these programs end soon

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""
COMMANDS = """
import contextlib, io, json, shlex, sys
from fedflat.cli import main

for line in {lines!r}:
    sys.argv, code = ["fedflat", *shlex.split(line)], 0
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    packages = sorted({{name.partition(".")[0] for name in sys.modules}})
    print(json.dumps([line, code, out.getvalue(), err.getvalue(), packages]))
"""


@dataclass(frozen=True)
class Command:
    """What a command line printed, and the packages that its process had imported by then."""

    line: str
    code: int
    out: str
    err: str
    packages: list[str]


def output_of(code: str, missing: Iterable[str] = (), folder: Path | None = None, **environment: str) -> str:
    """What a new process prints that runs `code` in `folder`; importing a package of `missing` fails in it."""
    variables = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    variables |= {"PYTHONPATH": str(SOURCE), "COLUMNS": "200", "TERM": "dumb"} | environment
    program = [sys.executable, "-c", REFUSE.format(missing=set(missing)) + code]
    ended = subprocess.run(program, capture_output=True, text=True, env=variables, cwd=folder, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def commands(
    *lines: str, missing: Iterable[str] = (), folder: Path | None = None, **environment: str
) -> Iterator[Command]:
    """Run command lines one after another in one new process."""
    for line in output_of(COMMANDS.format(lines=lines), missing, folder, **environment).splitlines():
        yield Command(*json.loads(line))

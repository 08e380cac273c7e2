"""The fast tests with other versions of Python and torch, each pair in an environment of its own.

    python -m benchmarks.matrix [--python 3.12 ...] [--torch 2.8.0 ...] [--out docs/matrix.json]

For every pair of the two, makes `.venv/matrix/PYTHON-TORCH` with the versions of constraints.txt and that torch, runs
the tests that are not marked slow, and prints and keeps what became of them; rows of other pairs stay. An environment
is removed when its tests have passed: torch for a GPU has up to 7 GB. The command of Python X.Y is `pythonX.Y`.
pip reads its own settings: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu makes it the small torch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from fedflat.files import write_atomically

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".venv" / "matrix"
PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.8.0", "2.13.0", "2.15.0")  # the oldest, the one that every test runs with, and the newest
JUDGE = "tests/docs/test_versions.py"  # of what is written here: not tried, or a failure would fail later pairs
LIMIT = 7200  # most seconds that a pair's tests may take; they take minutes
VERSIONS = (
    "import json, platform, numpy, torch; print(json.dumps({'python': platform.python_version(),"
    " 'torch': torch.__version__, 'numpy': numpy.__version__, 'system': platform.system()}))"
)
Row = dict[str, Any]


def surroundings() -> dict[str, str]:
    """Return the environment of a pair's processes, which import what is installed there."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def install(folder: Path, python: str, torch: str) -> Path:
    """Make the environment of a pair, or complete an interrupted one; return its Python."""
    program = folder / "bin" / "python"
    subprocess.run([python, "-m", "venv", folder], env=surroundings(), check=True)  # noqa: S603 (the caller's Python)
    constraints = folder / "constraints.txt"
    constraints.write_text(constrained((ROOT / "constraints.txt").read_text(), torch))
    pip = [program, "-m", "pip", "install", "--quiet", "--constraint", constraints]
    subprocess.run([*pip, f"torch=={torch}", "--editable", ".[dev]"], cwd=ROOT, env=surroundings(), check=True)  # noqa: S603
    return program


def constrained(versions: str, torch: str) -> str:
    """Return the tested versions with another torch."""
    return re.sub(r"^torch==.*$", f"torch=={torch}", versions, flags=re.MULTILINE)


def tried(program: Path, processes: int) -> Row:
    """Run the fast tests; return the versions and what became of the tests."""
    versions = subprocess.run([program, "-c", VERSIONS], env=surroundings(), capture_output=True, check=True)  # noqa: S603
    with tempfile.TemporaryDirectory() as folder:
        report, before = Path(folder) / "report.xml", time.monotonic()
        command = [program, "-m", "pytest", "-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder",
                   "-m", "not slow", "-p", "no:cacheprovider", f"--ignore={JUDGE}", f"--junitxml={report}"]  # fmt: skip
        ended = subprocess.run(command, cwd=ROOT, env=surroundings(), timeout=LIMIT, check=False)  # noqa: S603 (pytest)
        if ended.returncode not in (0, 1):  # all passed, some failed
            raise subprocess.CalledProcessError(ended.returncode, command)
        seconds = round(time.monotonic() - before)
        tests = counted(ElementTree.parse(report))  # noqa: S314 (what pytest has just written)
    return {**json.loads(versions.stdout), **tests, "seconds": seconds}


def counted(report: ElementTree.ElementTree) -> Row:
    """Return how many tests passed, failed and were skipped, from a report in JUnit's form, and which failed."""
    kinds: dict[str, set[str]] = {}
    for case in report.iter("testcase"):  # a test that passes and cannot be cleaned up has two
        file, name = case.attrib["classname"].replace(".", "/"), case.attrib["name"]
        name = f"{file}.py::{name}" if file else f"{name.replace('.', '/')}.py"  # a file that cannot be imported
        kinds.setdefault(name, set()).update(child.tag for child in case)
    failures = sorted(name for name, found in kinds.items() if found & {"failure", "error"})
    skipped = sum("skipped" in found for name, found in kinds.items() if name not in failures)
    passed = len(kinds) - len(failures) - skipped
    return {"passed": passed, "failed": len(failures), "skipped": skipped, "failures": failures}


def keep(file: Path, row: Row) -> None:
    """Write a pair's row to `file`, in place of an earlier one of the same pair and system."""
    known = json.loads(file.read_text())["pairs"] if file.exists() else []
    rows = {pair(one): one for one in [*known, row]}
    text = json.dumps({"pairs": [rows[key] for key in sorted(rows)]}, indent=1) + "\n"
    write_atomically(file, lambda path: path.write_text(text))


def pair(row: Row) -> tuple[str, tuple[int, ...], str]:
    """Return what rows are told apart by: Python without its last number, torch without its build, and the system."""
    release = row["torch"].partition("+")[0]
    return row["python"].rpartition(".")[0], tuple(map(int, release.split("."))), row["system"]


def command_of(python: str) -> str:
    """Return the program of a version of Python."""
    if not (found := shutil.which(f"python{python}")):
        raise SystemExit(f"--python {python}: there is no python{python} on the path")
    return found


def main() -> None:
    """Try all pairs, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="X.Y", help=f"by default {', '.join(PYTHONS)}")
    parser.add_argument("--torch", action="append", metavar="X.Y.Z", help=f"by default {', '.join(TORCHES)}")
    parser.add_argument("--processes", type=int, default=2, help="of pytest")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to write every pair's row to; others in it stay")
    given = parser.parse_args()
    programs = {python: command_of(python) for python in given.python or PYTHONS}
    wrong = False
    for python, torch in ((python, torch) for python in programs for torch in given.torch or TORCHES):
        folder = ENVIRONMENTS / f"{python}-{torch}"
        try:
            row = tried(install(folder, programs[python], torch), given.processes)
        except subprocess.SubprocessError as error:
            print(f"Python {python}, torch {torch}: {error}", flush=True)
            wrong = True
            continue
        print(json.dumps(row, indent=1), flush=True)
        if given.out:
            keep(given.out, row)
        wrong |= bool(row["failed"])
        if not row["failed"]:
            shutil.rmtree(folder)
    sys.exit(wrong)


if __name__ == "__main__":
    main()

"""The tests with other versions of Python, torch and Flower, each combination in an environment of its own.

    python -m benchmarks.matrix [--python 3.12 ...] [--torch 2.8.0 ...] [--flower 1.42.0 ...] [--out docs/matrix.json]

For every pair of Python and torch, makes `.venv/matrix/PYTHON-TORCH` with the versions of constraints.txt and that
torch, runs the tests that are not marked slow, and prints and keeps what became of them; rows of other pairs stay. For
every Flower, makes `.venv/matrix/flwr-FLOWER` with the oldest Python, and runs all tests of federations.

Without options all are tried; with --python or --torch pairs alone, and with --flower alone no pairs. An environment is
removed when its tests have passed: torch for a GPU has up to 7 GB. The command of Python X.Y is `pythonX.Y`.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from packaging.version import Version

from fedflat.files import write_atomically

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".venv" / "matrix"
PYTHONS = ("3.11", "3.12", "3.13")
TORCHES = ("2.8.0", "2.13.0", "2.15.0")  # the oldest, the one that every test runs with, and the newest
FLOWERS = ("1.41.0", "1.42.0")  # those that the package supports
FOLLOWING = ("uv", "certifi")  # each Flower has bounds of its own on these
JUDGE = "tests/docs/test_versions.py"  # of what is written here: not tried, or a failure would fail later pairs
FAST, FEDERATIONS = ("-m", "not slow", f"--ignore={JUDGE}"), ("tests/federation",)  # which tests pytest runs
LIMIT = 7200  # most seconds that the tests of an environment may take; they take minutes
VERSIONS = (
    "import json, platform, numpy, torch; from importlib.metadata import version;"
    " print(json.dumps({'python': platform.python_version(), 'torch': torch.__version__, 'numpy': numpy.__version__,"
    " 'flwr': version('flwr'), 'system': platform.system()}))"
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """Versions that are tried, those of constraints.txt where there is none."""

    python: str
    torch: str = ""
    flower: str = ""

    @property
    def name(self) -> str:
        """The name of the environment."""
        return f"flwr-{self.flower}" if self.flower else f"{self.python}-{self.torch}"

    @property
    def tests(self) -> Sequence[str]:
        """Which tests are run."""
        return FEDERATIONS if self.flower else FAST

    @property
    def part(self) -> str:
        """The part of the file of results that has the row."""
        return "flower" if self.flower else "pairs"


def surroundings() -> dict[str, str]:
    """Return the environment of the processes of a trial, which import what is installed there."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def install(folder: Path, python: str, trial: Trial) -> Path:
    """Make the environment of a trial, or complete an interrupted one; return its Python."""
    program = folder / "bin" / "python"
    subprocess.run([python, "-m", "venv", folder], env=surroundings(), check=True)  # noqa: S603 (the caller's Python)
    constraints = folder / "constraints.txt"
    constraints.write_text(constrained((ROOT / "constraints.txt").read_text(), trial))
    pip = [program, "-m", "pip", "install", "--quiet", "--constraint", constraints]
    subprocess.run([*pip, "torch", "--editable", ".[dev]"], cwd=ROOT, env=surroundings(), check=True)  # noqa: S603
    return program


def constrained(versions: str, trial: Trial) -> str:
    """Return the tested versions with another torch, or with another Flower and what follows from it."""
    if trial.flower:
        versions = re.sub(rf"^({'|'.join(FOLLOWING)})==.*\n", "", versions, flags=re.MULTILINE)
    for name, version in {"torch": trial.torch, "flwr": trial.flower}.items():
        if version:
            versions = re.sub(rf"^{name}==.*$", f"{name}=={version}", versions, flags=re.MULTILINE)
    return versions


def tried(program: Path, processes: int, tests: Sequence[str] = FAST) -> Row:
    """Run tests; return the versions and what became of the tests."""
    versions = subprocess.run([program, "-c", VERSIONS], env=surroundings(), capture_output=True, check=True)  # noqa: S603
    with tempfile.TemporaryDirectory() as folder:
        report, before = Path(folder) / "report.xml", time.monotonic()
        command = [program, "-m", "pytest", "-n", str(processes), "--dist", "loadfile", "--no-loadscope-reorder",
                   "-p", "no:cacheprovider", f"--junitxml={report}", *tests]  # fmt: skip
        ended = subprocess.run(command, cwd=ROOT, env=surroundings(), timeout=LIMIT, check=False)  # noqa: S603 (pytest)
        if ended.returncode not in (0, 1):  # all passed, some failed
            raise subprocess.CalledProcessError(ended.returncode, command)
        seconds = round(time.monotonic() - before)
        outcome = counted(ElementTree.parse(report))  # noqa: S314 (what pytest has just written)
    return {**json.loads(versions.stdout), **outcome, "seconds": seconds}


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


def keep(file: Path, row: Row, part: str = "pairs") -> None:
    """Write a row to a part of `file`, in place of an earlier one of the same versions and system."""
    content = json.loads(file.read_text()) if file.exists() else {}
    rows = {identity(one): one for one in [*content.get(part, ()), row]}
    text = json.dumps({**content, part: [rows[key] for key in sorted(rows)]}, indent=1) + "\n"
    write_atomically(file, lambda path: path.write_text(text))


def identity(row: Row) -> tuple[str, Version, Version, str]:
    """Return what rows are told apart by: Python without its last number, torch without its build, Flower, the system.

    Rows of pairs that were kept before Flower was tried do not name it.
    """
    release = Version(Version(row["torch"]).public)
    return row["python"].rpartition(".")[0], release, Version(row.get("flwr", FLOWERS[0])), row["system"]


def command_of(python: str) -> str:
    """Return the program of a version of Python."""
    if not (found := shutil.which(f"python{python}")):
        raise SystemExit(f"--python {python}: there is no python{python} on the path")
    return found


def trials(pythons: Sequence[str], torches: Sequence[str], flowers: Sequence[str]) -> list[Trial]:
    """Return what is tried for the versions that the command names, of which any may be empty."""
    pairs, all_of_them = pythons or torches, not (pythons or torches or flowers)
    found = [Trial(python, torch) for python in pythons or PYTHONS for torch in torches or TORCHES]
    chosen = flowers or (FLOWERS if all_of_them else ())
    return [*(found if pairs or all_of_them else ()), *(Trial(PYTHONS[0], flower=flower) for flower in chosen)]


def main() -> None:
    """Try all combinations, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, known in (("python", PYTHONS), ("torch", TORCHES), ("flower", FLOWERS)):
        parser.add_argument(f"--{name}", action="append", default=[], metavar="X.Y.Z", help=f"of {', '.join(known)}")
    parser.add_argument("--processes", type=int, default=2, help="of pytest")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON to write every row to; others in it stay")
    given = parser.parse_args()
    chosen, wrong = trials(given.python, given.torch, given.flower), False
    programs = {trial.python: command_of(trial.python) for trial in chosen}
    for trial in chosen:
        folder = ENVIRONMENTS / trial.name
        try:
            row = tried(install(folder, programs[trial.python], trial), given.processes, trial.tests)
        except subprocess.SubprocessError as error:
            print(f"{trial.name}: {error}", flush=True)
            wrong = True
            continue
        print(json.dumps(row, indent=1), flush=True)
        if given.out:
            keep(given.out, row, trial.part)
        wrong |= bool(row["failed"])
        if not row["failed"]:
            shutil.rmtree(folder)
    sys.exit(wrong)


if __name__ == "__main__":
    main()

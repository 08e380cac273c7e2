"""Every promise and every row of the page of threats, held by its tests or said to be unprotected.

    python -m benchmarks.promises [--all] [--only PART] [--out promises.json]

Runs the tests that docs/promises.toml, docs/threat_model.md and SECURITY.md name, once each, and prints a row for every
promise and every threat: held, not held with the tests that failed, or what the page says is not protected. With --all
also the tests that only `make test-all` runs; without, a row says how many of its tests were left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(?:tests/)?([\w/]+\.py)(?:::(\w+))?`")
UNPROTECTED = "said to be unprotected"


@dataclass(frozen=True)
class Statement:
    """What a page says, and the tests that hold it; none if it says that something is not protected."""

    page: str
    says: str
    tests: tuple[str, ...]  # such as tests/test_files.py::test_name, or a whole file


@dataclass(frozen=True)
class Judged:
    """A statement, and what its tests said."""

    page: str
    says: str
    verdict: str
    tests: int  # how many cases ran


def statements(root: Path = ROOT) -> list[Statement]:
    """Return all that the pages say, in their order."""
    promises = tomllib.loads((root / "docs" / "promises.toml").read_text())["promise"]
    found = [Statement("promises", one["says"], tuple(one["tests"])) for one in promises]
    for page in ("docs/threat_model.md", "SECURITY.md"):
        found += _rows(page, (root / page).read_text())
    threats = (root / "docs" / "threat_model.md").read_text()
    open_ones = threats.split("## What is not protected")[1].split("\n## ")[0]
    titles = re.findall(r"^\* \*\*(.+?)\*\*", open_ones, re.M | re.S)
    return found + [Statement("docs/threat_model.md", " ".join(title.split()), ()) for title in titles]


def _rows(page: str, text: str) -> Iterator[Statement]:
    """Yield the rows of tables that name tests in their last cell."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and (named := NAMED.findall(cells[-1])):
            yield Statement(page, cells[0], tuple(_identifier(file, name) for file, name in named))


def _identifier(file: str, name: str) -> str:
    return f"tests/{file}::{name}" if name else f"tests/{file}"


def run(tests: Sequence[str], everything: bool) -> dict[str, list[str]]:
    """Run the tests once each; the outcomes of their cases by the test's name: passed, failed or skipped."""
    variables = {**os.environ, **({"FEDFLAT_TEST_ALL": "1"} if everything else {})}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background a shell ignores it, also for tests
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider",
                   f"--junitxml={report}", *sorted(set(tests))]  # fmt: skip
        subprocess.run(command, cwd=ROOT, env=variables, check=False)  # noqa: S603 (pytest)
        return outcomes(ElementTree.parse(report))  # noqa: S314 (what pytest has just written)


def outcomes(report: ElementTree.ElementTree) -> dict[str, list[str]]:
    """Return the outcomes of cases, by test and by file, from a report in JUnit's form."""
    found: dict[str, list[str]] = {}
    for case in report.iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        file = f"{case.attrib['classname'].replace('.', '/')}.py"
        for name in (file, f"{file}::{case.attrib['name'].partition('[')[0]}"):
            found.setdefault(name, []).append(outcome)
    return found


def judge(statement: Statement, found: Mapping[str, Sequence[str]]) -> Judged:
    """Return what the outcomes of its tests say of a statement; a test that did not run at all has failed."""
    cases = {name: found.get(name, ()) for name in statement.tests}
    wrong = [name for name, some in cases.items() if "failed" in some or not some]
    flat = [outcome for some in cases.values() for outcome in some]
    if not statement.tests:
        verdict = UNPROTECTED
    elif wrong:
        verdict = f"NOT HELD: {', '.join(wrong)}"
    else:
        left = flat.count("skipped")
        verdict = "held" if not left else f"held, {left} left out" if "passed" in flat else "NOT TRIED: needs --all"
    return Judged(statement.page, statement.says, verdict, len(flat) - flat.count("skipped"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also the tests that only `make test-all` runs")
    parser.add_argument("--only", default="", metavar="PART", help="statements with this in their text or tests")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows to a JSON file, too")
    given = parser.parse_args()
    chosen = [one for one in statements() if given.only in f"{one.says} {one.tests}"]
    if not chosen:
        parser.error(f"--only {given.only}: no statement has that in its text or tests")
    tests = [test for one in chosen for test in one.tests]
    found = run(tests, given.all) if tests else {}
    rows = [judge(one, found) for one in chosen]
    for row in rows:
        print(f"{row.page:20}  {row.verdict:22}  {row.tests:4}  {row.says}")
    if given.out:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    sys.exit(any(row.verdict.startswith("NOT") for row in rows))


if __name__ == "__main__":
    main()

"""Plants defects one at a time, and says which test notices each.

    python -m benchmarks.planted_defects --out docs/planted_defects.json
    git worktree add /tmp/before 6cdfcb3
    python -m benchmarks.planted_defects --before /tmp/before --out docs/planted_defects.json

The defects are in planted_defects.toml. Each is planted in a copy of the checkout, never in the checkout itself. First
come the tests of its room, one after another until one fails. The defects that no test of their room notices are then
planted together, and everything that `make test` does is run; whatever fails is run again with each of them alone. A
defect counts as caught only by a test that fails with it alone and passes without it, so that a test that fails now and
then catches nothing. `--before` plants into another version, with that version's own tests. Results are written after
every defect; `--missing` goes on where an earlier call has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from fedflat.federation.launch import orphan_reaper  # noqa: E402 (after the path)

DEFECTS = Path(__file__).with_suffix(".toml")
MARK = "FEDFLAT_PLANTED"  # in the environment of all processes of one trial
LIMIT = 7200.0  # seconds for one call of pytest
ENDINGS = (0, 1, 2, 5)  # of pytest: all pass, some fail, a file cannot be imported, there is no test
CHECKS = {  # what `make test` does beside pytest
    "make lint": ("ruff", "check", "."),
    "make types": ("mypy",),
    "make imports": ("lint-imports",),
    "make docs-check": ("python", "-m", "docs.generate", "--check"),
}


@dataclass(frozen=True)
class Defect:
    """A change of a line or two that makes the program wrong; in `also`, those that it takes elsewhere besides."""

    name: str
    room: str
    what: str  # in words
    file: str
    old: str
    new: str
    also: tuple[dict[str, str], ...] = ()  # with `file`, `old` and `new` each; what two parties must leave out alike

    @classmethod
    def of(cls, table: dict[str, Any], before: bool) -> Defect:
        """Return the defect in its table of the TOML file; `before` for the version that is compared with."""
        changes = {key: table.get(f"before_{key}", table[key]) for key in ("file", "old", "new")}
        there = changes if before else {key: table[key] for key in changes}
        return cls(table["name"], table["room"], table["what"], **there, also=tuple(table.get("also", ())))

    def planted(self, tree: Path) -> dict[str, str]:
        """Return its files below `tree`, by name, with the defect. Raises ValueError unless old texts occur once."""
        texts: dict[str, str] = {}
        for change in ({"file": self.file, "old": self.old, "new": self.new}, *self.also):
            file, old = change["file"], change["old"]
            text = texts.get(file, (tree / file).read_text() if (tree / file).exists() else "")
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {file} has {old!r} {text.count(old)} times, not once")
            texts[file] = text.replace(old, change["new"])
        return texts


@dataclass(frozen=True)
class Outcome:
    """Whether a defect was caught."""

    caught_by: str | None  # the first test, or the check of `make test`, that fails
    tried: str  # "room", or "make test"
    seconds: float


class Planter:
    """Runs tests in copies of a checkout."""

    def __init__(self, source: Path, folder: Path, rooms: dict[str, list[str]]) -> None:
        """Make the copies in `folder`, which is empty."""
        self._source, self._folder, self._rooms = source, folder, rooms
        self._files = [file for file in known_to_git(source) if (source / file).exists()]
        self._clean = self._copy("clean", ())

    def check(self, defects: Sequence[Defect]) -> None:
        """Raise ValueError unless each defect can be planted."""
        for defect in defects:
            defect.planted(self._clean)

    def in_room(self, defect: Defect) -> Outcome:
        """Run the tests of a defect's room: first those of its file, if there are any, then all."""
        started, tree = monotonic(), self._copy("planted", (defect,))
        tests = self._rooms[defect.room]
        name = f"test_{Path(defect.file).stem}.py"
        own = [str(path.relative_to(tree)) for folder in tests for path in sorted((tree / folder).rglob(name))]
        try:
            caught = self._first(tree, own) or self._first(tree, tests)
        except subprocess.TimeoutExpired:
            caught = f"(the tests had not ended after {LIMIT:g} seconds)"
        return Outcome(caught, "room", round(monotonic() - started, 1))

    def in_whole(self, defects: Sequence[Defect], workers: int) -> Iterator[tuple[Defect, Outcome]]:
        """Run everything with all `defects` planted together, and find out which of them each failure is due to."""
        started, tree, left = monotonic(), self._copy("planted", defects), list(defects)
        suspects = self._failing(tree, ["-n", str(workers)] if workers > 1 else []) + self._failed(tree, list(CHECKS))
        while left and suspects:
            guilty = [] if self._failed(self._clean, suspects[:1]) else self._guilty(left, suspects[0])
            for defect in guilty:
                left.remove(defect)
                yield defect, Outcome(suspects[0], "make test", round(monotonic() - started, 1))
            suspects = self._failed(self._copy("planted", left), suspects[1:]) if guilty and left else suspects[1:]
        for defect in left:
            yield defect, Outcome(None, "make test", round(monotonic() - started, 1))

    def _guilty(self, defects: Sequence[Defect], suspect: str) -> list[Defect]:
        """Return the defects that a test, or a check, fails with when each is alone."""
        return [defect for defect in defects if self._failed(self._copy("alone", (defect,)), [suspect])]

    def _first(self, tree: Path, tests: Sequence[str]) -> str | None:
        """Return the first test that fails in `tree`, whenever it is run, and passes without the defect."""
        passed_over: list[str] = []
        while tests and (failed := self._failing(tree, [*tests, "-x", *(f"--deselect={one}" for one in passed_over)])):
            if self._failed(tree, failed[:1]) and not self._failed(self._clean, failed[:1]):
                return failed[0]
            passed_over.append(failed[0])
        return None

    def _copy(self, name: str, defects: Sequence[Defect]) -> Path:
        """Return a copy of the checkout with `defects` planted."""
        tree = self._folder / name
        shutil.rmtree(tree, ignore_errors=True)
        for file in self._files:
            (tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._source / file, tree / file)
        for defect in defects:
            for file, text in defect.planted(tree).items():
                (tree / file).write_text(text)
        return tree

    def _failed(self, tree: Path, suspects: Sequence[str]) -> list[str]:
        """Return those of some tests, and checks of `make test`, that fail in `tree`."""
        tests = [one for one in suspects if one not in CHECKS]
        checks = [one for one in suspects if one in CHECKS]
        scripts = Path(sys.executable).parent
        failed = [one for one in checks if self._run(tree, [str(scripts / CHECKS[one][0]), *CHECKS[one][1:]])]
        return [*(self._failing(tree, tests) if tests else ()), *failed]

    def _failing(self, tree: Path, arguments: Sequence[str]) -> list[str]:
        """Return the tests that fail when pytest is called so."""
        report = self._folder / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", f"--basetemp={self._folder / 't'}", f"--junit-xml={report}"]
        code = self._run(tree, [sys.executable, "-m", "pytest", *options, "-o", "junit_family=xunit1", *arguments])
        if code not in ENDINGS:
            raise RuntimeError(f"pytest ended with {code}: {(self._folder / 'log.txt').read_text()[-2000:]}")
        cases = ElementTree.parse(report).iter("testcase")  # noqa: S314 (pytest has just written it)
        return [_node(case) for case in cases if case.find("failure") is not None or case.find("error") is not None]

    def _run(self, tree: Path, command: Sequence[str]) -> int:
        """Return the exit code of a program that imports `tree`, of which nothing is left. Raises TimeoutExpired."""
        token = secrets.token_hex(16)
        paths = os.pathsep.join(str(tree / part) for part in ("src", "tests"))
        # CI: tests that draw examples always draw the same.
        environment = os.environ | {"PYTHONPATH": paths, "CI": "1", MARK: token}
        with (self._folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log)  # noqa: S603
            try:
                return process.wait(LIMIT)
            finally:
                orphan_reaper.end_processes(f"{MARK}={token}", terminate_seconds=0.0)
                process.wait()


def known_to_git(source: Path) -> list[str]:
    """Return the files of a checkout, those that are not committed yet included."""
    command = ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    return [file for file in listed.split("\0") if file]


def _node(case: ElementTree.Element) -> str:
    """Return the name by which pytest can be asked for a test, or for a file that could not be imported."""
    file, name, place = case.get("file"), case.get("name", ""), case.get("classname")
    if file is None or not place:
        return name.replace(".", "/") + ".py"
    classes = place.removeprefix(file.removesuffix(".py").replace("/", ".")).split(".")[1:]
    return "::".join([file, *classes, name])


def read(before: bool) -> tuple[list[Defect], dict[str, list[str]]]:
    """Return the defects, and the tests of every room."""
    content: dict[str, Any] = tomllib.loads(DEFECTS.read_text())
    rooms = content["rooms"] | (content["before_rooms"] if before else {})
    return [Defect.of(table, before) for table in content["defect"]], rooms


class Results:
    """What became of every defect, in a JSON file."""

    def __init__(self, path: Path | None, when: str, defects: Sequence[Defect]) -> None:
        """Keep outcomes of `when`, which is "before" or "after"."""
        self._path, self._when = path, when
        known = json.loads(path.read_text())["defects"] if path and path.exists() else []
        kept = {row["name"]: row for row in known}
        self._rows = {one.name: {**kept.get(one.name, {}), "name": one.name, "room": one.room, "what": one.what}
                      for one in defects}  # fmt: skip

    def of(self, defect: Defect) -> Outcome | None:
        """Return what is known of a defect."""
        found = self._rows[defect.name].get(self._when)
        return Outcome(**found) if found else None

    def add(self, defect: Defect, outcome: Outcome) -> None:
        """Keep what became of a defect, and print it."""
        self._rows[defect.name][self._when] = asdict(outcome)
        print(f"{defect.room:12} {defect.name:32} {outcome.seconds:8.1f} s  {outcome.caught_by or '-'}", flush=True)
        if self._path:
            self._path.write_text(json.dumps({"defects": list(self._rows.values())}, indent=2) + "\n")


def main() -> None:
    """Plant the defects, and keep what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="plant into this checkout of another version")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these defects")
    parser.add_argument("--missing", action="store_true", help="leave out those of which the file of --out knows")
    parser.add_argument("--rooms", action="store_true", help="run no tests but those of the rooms")
    parser.add_argument("--check", action="store_true", help="see whether all can be planted, and run nothing")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest when everything is run")
    parser.add_argument("--out", type=Path, help="JSON to write what became of them to; others in it stay")
    given = parser.parse_args()
    every, rooms = read(before=given.before is not None)
    chosen = [one for one in every if given.only is None or one.name in given.only]
    results = Results(given.out and given.out.resolve(), "before" if given.before else "after", every)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        planter = Planter((given.before or ROOT).resolve(), Path(folder).resolve(), rooms)
        planter.check(chosen)
        if given.check:
            return
        for defect in chosen:
            if not (given.missing and results.of(defect)):
                results.add(defect, planter.in_room(defect))
        left = [one for one in chosen if (found := results.of(one)) and not found.caught_by and found.tried == "room"]
        if left and not given.rooms:
            for defect, outcome in planter.in_whole(left, given.workers):
                results.add(defect, outcome)


if __name__ == "__main__":
    main()

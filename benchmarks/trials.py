"""Everything that can go wrong with files, tried again: kills, flips, full disks, lost power, hostile input.

    python -m benchmarks.trials [--share 1.0] [--only flips] [--out docs/trials.json]

Prints a row for each trial as it ends: how often it was tried, how often nothing was lost or wrong, and what was. What
an audit found of the version before (commit 703cebd) is kept beside it. `make trials` runs all of it, in about an hour;
a `--share` of 0.1 takes some minutes. Run it from a clone: it uses the tests' own damage and their own judges.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
sys.path[:0] = [str(TESTS), str(ROOT / "src")]

from fedflat.core.errors import InputError  # noqa: E402 (after the path)
from fedflat.engine.client_store import check_records  # noqa: E402
from fedflat.experiments import runner  # noqa: E402
from fedflat.experiments.run_directory import RunDirectory  # noqa: E402
from fedflat.rounds import checkpoint  # noqa: E402
from support.durability import difference, facts, spec  # noqa: E402


@dataclass
class Outcome:
    """What became of a trial."""

    tried: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, problem: str | None) -> None:
        """Count one, with what was wrong."""
        self.tried += 1
        if problem:
            self.wrong.append(problem)


@dataclass(frozen=True)
class Trial:
    """One row."""

    name: str
    audit: str  # tried, survived and lost, of the version before
    work: Callable[[float, Path], Outcome]


def of_support(mode: str, stores: tuple[str, ...], ranks: int) -> Callable[[float, Path], Outcome]:
    """Return the points of `support.durability`."""

    def work(share: float, folder: Path) -> Outcome:
        outcome = Outcome()
        for store in stores:
            place = Path(tempfile.mkdtemp(dir=folder))
            every = str(max(1, round(1 / share)))
            command = [sys.executable, "-m", "support.durability", mode, store, str(ranks), every, str(place)]
            done = subprocess.run(command, cwd=TESTS, env=surroundings(), capture_output=True, text=True, check=False)  # noqa: S603
            for line in done.stdout.splitlines():
                outcome.add(json.loads(line)[1])
            if done.returncode:
                outcome.add(f"the trial itself ended with {done.returncode}: {done.stderr[-200:]}")
        return outcome

    return work


def of_tests(*nodes: str) -> Callable[[float, Path], Outcome]:
    """Return test cases, each of which tries one thing, or says with the property `tried` how many."""

    def work(share: float, folder: Path) -> Outcome:
        report = folder / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "junit_family=xunit1", f"--junit-xml={report}", *nodes]
        long = {"FEDFLAT_TEST_ALL": "1"} if share >= 1 else {}
        subprocess.run(command, cwd=ROOT, env=surroundings() | long, capture_output=True, check=False)  # noqa: S603
        outcome = Outcome()
        for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314 (pytest has just written it)
            if case.find("skipped") is None:
                failed = case.find("failure") is not None or case.find("error") is not None
                outcome.add(case.get("name") if failed else None)
                outcome.tried += sum(int(one.get("value", 1)) - 1 for one in case.iter("property"))
        return outcome

    return work


def surroundings() -> dict[str, str]:
    """Return the environment of processes that import this clone."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(TESTS))), "OMP_NUM_THREADS": "1"}


def random_kills(share: float, folder: Path) -> Outcome:
    """Kill real processes at random, and start them again until they end; records in a file, half with two workers."""
    rng, outcome = np.random.default_rng(0), Outcome()
    longer = {"rounds": 150, "checkpoint_every": 1}
    runner.run(spec("file").model_copy(update=longer), folder / "whole")
    whole = facts(folder / "whole")
    for number in range(max(2, round(23 * share))):
        config, place = folder / f"{number}.toml", folder / str(number)
        config.write_text(spec("file").model_copy(update=longer | {"workers": 1 + number % 2}).to_toml())
        kills = sum(killed(config, place, 2.5 + 2 * rng.random()) for _ in range(3))
        runner.run(spec("file").model_copy(update=longer), place)
        problem = difference(whole, facts(place))
        for _ in range(kills or 1):
            outcome.add(problem)
        shutil.rmtree(place)
    return outcome


def killed(config: Path, place: Path, seconds: float) -> bool:
    """Start a run and kill it; whether it was still going on."""
    command = [sys.executable, "-m", "fedflat", "run", str(config), "--out", str(place)]
    with subprocess.Popen(command, env=surroundings(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:  # noqa: S603
        time.sleep(seconds)
        survivors = run.poll() is None
        run.kill()
    return survivors


def flips(what: str, number: int) -> Callable[[float, Path], Outcome]:
    """Flip one bit at a time of a state (its header or tensors) or of the slot file (its header or records)."""

    def work(share: float, folder: Path) -> Outcome:
        directory = stopped(folder, "memory" if what in ("tensors", "header") else "file")
        state, slots = directory.checkpoints[-1], directory.state / "clients.slots"
        path = slots if "slot" in what else state
        places = np.concatenate([np.arange(start, end) for start, end in _spans(what, state, slots)])
        rng, outcome, whole = np.random.default_rng(1), Outcome(), path.read_bytes()
        for _ in range(round(number * share)):
            place = int(rng.choice(places))
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged)
            outcome.add(None if named(directory) else f"byte {place} passed")
        return outcome

    return work


def _spans(what: str, state: Path, slots: Path) -> list[tuple[int, int]]:
    """Return where the bytes are that the newest state needs, from one place to before another."""
    head = 8 + int.from_bytes(state.read_bytes()[:8], "little")
    if what in ("header", "tensors"):
        return [(0, head)] if what == "header" else [(head, state.stat().st_size)]
    content, tensors = slots.read_bytes(), checkpoint.load(state)[0]
    size, key = int.from_bytes(content[16:24], "little"), content.index(tensors["clients.slot-file"].numpy().tobytes())
    if what == "slot header":
        return [(0, 24), (key, key + 16)]  # and not the keys of older states
    used = tensors["clients.slots"].numpy()
    return [(4096 + slot * size, 4096 + (slot + 1) * size) for slot in used[used >= 0]]


def named(directory: RunDirectory) -> bool:
    """Tell whether the newest state is refused in one line that names a file."""
    try:
        tensors, _ = checkpoint.load(directory.checkpoints[-1])
        clients = {name.removeprefix("clients."): x for name, x in tensors.items() if name.startswith("clients.")}
        check_records(clients, directory.state)
    except InputError as error:
        return str(directory.state) in str(error) and "\n" not in str(error)
    return False


def stopped(folder: Path, store: str) -> RunDirectory:
    """Return a run in `folder` that has states."""
    runner.run(spec(store), folder / "run")
    return RunDirectory(folder / "run")


def truncations(share: float, folder: Path) -> Outcome:
    """Cut states and slot files off, also to nothing."""
    outcome = Outcome()
    for store in ("memory", "file"):
        place = folder / store
        place.mkdir()
        directory = stopped(place, store)
        path = directory.checkpoints[-1] if store == "memory" else directory.state / "clients.slots"
        whole = path.read_bytes()
        for size in np.linspace(0, len(whole) - 1, max(3, round(41 * share))).astype(int):
            path.write_bytes(whole[:size])
            outcome.add(None if named(directory) else f"{size} of {len(whole)} bytes passed")
    return outcome


KILLED = "62 kills: 62 same SHA, 1 stale checkpoint"
BEFORE = "106: model 106, metrics rows lost at 8, stale checkpoint at 20"
HANGS = "9: all but a stopped worker, which hangs"
PROCESSES = (
    "tests/engine/test_workers.py",
    "tests/experiments/test_parallel.py",
    "tests/experiments/test_distributed.py",
)
BOTH = ("memory", "file")
TRIALS = (
    Trial("SIGKILL at random, slot file, half with 2 workers", KILLED, random_kills),
    Trial("SIGKILL before each file operation", BEFORE, of_support("kill", BOTH, 0)),
    Trial("the same, of the first of 2 ranks", "6 with records in a file: 0", of_support("kill", BOTH, 2)),
    Trial("power lost after each file operation", "not tried", of_support("power", BOTH, 0)),
    Trial("full disk, in a run", "28: model 28, clear line 18, 10 tracebacks", of_support("full", BOTH, 0)),
    Trial("full disk, every other writer", "in the row above", of_tests("tests/cli/test_full_disk.py")),
    Trial("truncated or empty state", "41: 41 named", truncations),
    Trial("flips: tensors", "200: 1, 199 silent", flips("tensors", 10_000)),
    Trial("flips: header", "400: 319, 68 silent, 13 tracebacks", flips("header", 6_000)),
    Trial("flips: slot records", "100: 25, 75 silent", flips("slot records", 3_600)),
    Trial("flips: slot header", "30: 30", flips("slot header", 400)),
    Trial(
        "other versions, changed code",
        "2: 0 noticed, one gave other bits",
        of_tests("tests/experiments/test_durable_state.py", "-k", "versions or code"),
    ),
    Trial(
        "worker killed or stopped, parent killed, signals; rank killed",
        HANGS,
        of_tests(*PROCESSES, "-k", "kill or stopped or signal or ctrl or hung"),
    ),
    Trial(
        "hostile data files",
        "44: 32, 10 tracebacks, 1 program run, 1 forged line",
        of_tests("tests/data/test_hostile.py"),
    ),
    Trial("hostile run folder to `report`", "30: 13, 17 tracebacks", of_tests("tests/cli/test_hostile_runs.py")),
    Trial("mutated studies", "300: 286, 14 tracebacks", of_tests("tests/experiments/test_hostile_toml.py")),
    Trial(
        "`flower run` SIGKILL",
        "5: 4, once a server app alive",
        of_tests(
            "tests/federation/launch/test_local_deployment.py",
            "tests/federation/launch/test_processes.py",
            "-k",
            "killed",
        ),
    ),
)


def main() -> None:
    """Carry out the trials, and keep what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the points of each trial, up to 1")
    parser.add_argument("--only", help="trials whose name has this in it")
    parser.add_argument("--out", type=Path, help="JSON to write what became of them to; others in it stay")
    given = parser.parse_args()
    known = json.loads(given.out.read_text())["trials"] if given.out and given.out.exists() else []
    rows = {row["name"]: row for row in known if row["name"] in [trial.name for trial in TRIALS]}
    for trial in (one for one in TRIALS if given.only is None or given.only in one.name):
        with tempfile.TemporaryDirectory() as folder:
            outcome = trial.work(given.share, Path(folder).resolve())
        rows[trial.name] = {"name": trial.name, "audit": trial.audit, **asdict(outcome)}
        survived = outcome.tried - len(outcome.wrong)
        print(f"{trial.name:62} {outcome.tried:6} {survived:6}  {'; '.join(outcome.wrong[:3])}", flush=True)
        if given.out:
            ordered = [rows[one.name] for one in TRIALS if one.name in rows]
            given.out.write_text(json.dumps({"trials": ordered}, indent=2) + "\n")
    sys.exit(any(row["wrong"] for row in rows.values()))


if __name__ == "__main__":
    main()

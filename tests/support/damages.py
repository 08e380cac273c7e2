"""Damages to files that a disk, an editor or a hand may do, and what came of reading the folder after each.

`python -m support.damages NUMBER [KIND...]` does `NUMBER` of them to every kind of folder, and prints a table by file.
"""

from __future__ import annotations

import logging
import shutil
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fedflat.cli.flags import resolve
from fedflat.cli.results import verdicts
from fedflat.core.errors import InputError
from fedflat.engine.simulation import Round
from fedflat.experiments import studies, tuning
from fedflat.experiments.runner import RunObserver, together
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.experiments.tracking import TrackingObserver
from fedflat.experiments.tuning_spec import TuningSpec
from fedflat.federation.client import ClientState
from fedflat.federation.flower.ejections import Ejections
from fedflat.federation.messages import RefusedError
from fedflat.federation.secure_sum.session import Session, SessionFolder, UnmaskedRounds
from fedflat.methods.scaffold import Control
from fedflat.reports.comparison import compare
from fedflat.reports.federation import FederationData
from support.flower_fixtures import GridFederation, study_of
from support.studies import SMALL, study_spec
from support.virtual_time import passing_at_once

Damage = Callable[[bytes, np.random.Generator, bytes], bytes | None]


def flipped(content: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    """One bit."""
    place = int(rng.integers(len(content)))
    return content[:place] + bytes([content[place] ^ 1 << int(rng.integers(8))]) + content[place + 1 :]


def truncated(content: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    return content[: int(rng.integers(len(content)))]


def swapped(content: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    """Two lines that follow each other, or halves of a file of one line."""
    lines = content.splitlines(keepends=True)
    if len(lines) < 2:
        return content[len(content) // 2 :] + content[: len(content) // 2]
    place = int(rng.integers(len(lines) - 1))
    lines[place : place + 2] = reversed(lines[place : place + 2])
    return b"".join(lines)


def doubled(content: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    """One line."""
    lines = content.splitlines(keepends=True)
    place = int(rng.integers(len(lines)))
    return b"".join([*lines[:place], lines[place], *lines[place:]])


def emptied(content: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    return b""


def missing(content: bytes, rng: np.random.Generator, other: bytes) -> None:
    return None


def another(content: bytes, rng: np.random.Generator, other: bytes) -> bytes:
    """The content of another file of the folder."""
    return other


DAMAGES: dict[str, Damage] = {
    one.__name__: one for one in (flipped, truncated, swapped, doubled, emptied, missing, another)
}
SHARES = [0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.1]  # of each kind; there is one way to empty a file


@dataclass
class Reading:
    """One way to use a folder, and what it gives when the folder is whole."""

    use: Callable[[Path], Any]
    result: Any = None


@dataclass
class Trial:
    """A folder whose files are damaged, one at a time."""

    folder: Path
    files: list[str]  # those that decide
    readings: Mapping[str, Reading]
    verify: Callable[[Path], list[str]] | None  # the damaged files that are found, by their paths in the folder
    tried: Counter[str] = field(default_factory=Counter)
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)  # by file
    wrong: list[str] = field(default_factory=list)  # what must not be, a line each

    def __post_init__(self) -> None:
        self._whole = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        for reading in self.readings.values():
            reading.result = reading.use(self.folder)
            self._restore()
        assert self.verify is None or self.verify(self.folder) == []
        for name in self.files:
            assert (self.folder / name).is_file(), name

    def carry_out(self, number: int, seed: int = 0) -> None:
        """So many damages, in turns to every file."""
        rng = np.random.default_rng(seed)
        for i in range(number):
            name = self.files[i % len(self.files)]
            kind = str(rng.choice(list(DAMAGES), p=SHARES))
            other = self._whole[self.folder / self.files[int(rng.integers(len(self.files)))]]
            content = DAMAGES[kind](self._whole[self.folder / name], rng, other)
            if content != self._whole[self.folder / name]:
                self.tried[name] += 1
                self._try(name, kind, content)

    def _try(self, name: str, kind: str, content: bytes | None) -> None:
        path, outcomes = self.folder / name, self.outcomes.setdefault(name, Counter())
        if self.verify is not None:
            self._put(path, content)
            said = self._outcome(self.verify)
            named = bool(said) if name.endswith("SHA256SUMS") else name in said
            outcomes["named by verify" if named else "not named"] += 1
            # Of a log, an end that no checkpoint knows of may be cut off: docs/threat_model.md.
            if not named and self._changes(name, content) and (name, kind) != ("events.jsonl", "truncated"):
                self.wrong.append(f"{name} {kind}: verify says {said}")
            if isinstance(said, str):
                self.wrong.append(f"{name} {kind}: verify ends with {said}")
        for what, reading in self.readings.items():
            self._put(path, content)
            found = self._outcome(reading.use)
            if isinstance(found, str):
                outcomes["refused" if found == "refused" else "broke"] += 1
                if found != "refused":
                    self.wrong.append(f"{name} {kind}: {what}: {found}")
            elif found == reading.result:
                outcomes["same"] += 1
            else:
                outcomes["silent"] += 1
                self.wrong.append(f"{name} {kind}: {what}: another result")
            self._restore()

    def _changes(self, name: str, content: bytes | None) -> bool:
        """Whether damage is one: not to a list of digests that says the same, or, of a run, some of the same, as one
        that was killed may leave it."""
        before, after = (set(some.splitlines()) for some in (self._whole[self.folder / name], content or b""))
        return not name.endswith("SHA256SUMS") or not (after == before or (len(name) > 10 and after <= before))

    def _outcome(self, use: Callable[[Path], Any]) -> Any:
        """What is found; "refused" for a refusal in one line; otherwise what went wrong."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return use(self.folder)
        except (InputError, RefusedError) as error:
            return "refused" if str(error).isprintable() else f"a refusal of several lines: {error!r}"
        except Exception:
            return traceback.format_exc(limit=-2)

    def _put(self, path: Path, content: bytes | None) -> None:
        path.unlink(missing_ok=True) if content is None else path.write_bytes(content)

    def _restore(self) -> None:
        """The folder as it was, but for temporary and lock files."""
        for path in [path for path in self.folder.rglob("*") if path.is_file() and path not in self._whole]:
            path.unlink()
        for path, content in self._whole.items():
            if not path.exists() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)


# --- folders ----------------------------------------------------------------------------------------------------------


class NothingTrained(RunObserver):
    """Fails if a round is computed."""

    def round_ended(self, spec: RunSpec, result: Round) -> None:
        raise AssertionError("a round was computed")


def damaged_files(folder: Path) -> list[str]:
    """What `fedflat verify` says is damaged; it looks a second time at a federation's, after a third of a second."""
    with passing_at_once():
        return [str(one.path.relative_to(folder)) for one in verdicts(folder) if one.problem]


def texts(folder: Path, *names: str) -> list[str]:
    return [(folder / name).read_text() for name in names]


def of_search(folder: Path) -> Trial:
    """A finished search: going on with it, and comparing its winners."""
    tune = {"configurations": 4, "rounds": [1, 2], "one_in": 2, "seeds": [5], "box": {"client.lr": [0.05, 0.3]}}
    data = {"name": "digits", "clients": 4, "validation": 0.2}
    spec = TuningSpec(**(SMALL | {"data": data, "methods": ["fedavg", "fedsam"], "seeds": [0], "tune": tune}))
    tuning.tune(spec, folder)

    def go_on(folder: Path) -> Any:
        return tuning.tune(spec, folder, NothingTrained()), texts(folder, "ledger.json", "curves.csv", "winners.toml")

    def winners(folder: Path) -> Any:
        return resolve(StudySpec, [str(folder / "winners.toml")]).table()

    [trial, *_] = sorted((folder / "trials").iterdir())
    own = ["tune.toml", "ledger.json", "curves.csv", "winners.toml", "SHA256SUMS"]
    trials = [f"trials/{trial.name}/{name}" for name in ("config.toml", "metrics.parquet", "summary.json")]
    return Trial(folder, [*own, *trials], {"go on": Reading(go_on), "compare": Reading(winners)}, damaged_files)


def of_study(folder: Path) -> Trial:
    """A finished study with a CSV tracker: its report, and going on with it."""
    spec = study_spec(data={"name": "digits", "clients": 4}, seeds=[0], rounds=2, flatness=[])

    def go_on(folder: Path) -> Any:
        found = studies.load_study(folder)
        with TrackingObserver(["csv"], folder, lambda one: studies.run_directory(one, folder)) as tracked:
            runs = studies.carry_out_study(found, folder, together(tracked, NothingTrained()))
        return [run.summary for run in runs], *(texts(run.directory.path, *tables) for run in runs)

    def report(folder: Path) -> Any:
        found, runs = studies.stored_study(folder)
        if len(runs) < len(found.runs()):  # `fedflat report` says how many
            raise InputError("a run is not finished and not shown")
        return [repr(compare(runs, targets=found.targets, protocol=found.protocol).table().to_pylist())]

    tables = ("metrics.csv", "summary.csv")
    with TrackingObserver(["csv"], folder, lambda one: studies.run_directory(one, folder)) as tracked:
        studies.carry_out_study(spec, folder, tracked)
    [run, *_] = sorted((folder / "runs").iterdir())
    names = ("config.toml", "metrics.parquet", "summary.json", "tracking.json", "SHA256SUMS", *tables)
    files = ["study.toml", "SHA256SUMS", *(f"runs/{run.name}/{name}" for name in names)]
    return Trial(folder, files, {"resume": Reading(go_on), "report": Reading(report)}, damaged_files)


def of_federation(folder: Path) -> Trial:
    """A finished federation with an ejected member: its list, its report, and the server that is started again."""
    federation = GridFederation(study_of(participation=1.0, rounds=2), folder)
    federation.serve()
    Ejections(federation.out).eject("client-1", "noise")
    federation.serve()
    shutil.rmtree(folder / "state", ignore_errors=True)

    def report(out: Path) -> Any:
        found = FederationData.read(out)
        if found.damaged:  # the report says so
            raise InputError(found.damaged[0])
        return found.headline, found.label, found.planned, found.rounds, [one.absence for one in found.clients]

    def go_on(out: Path) -> Any:
        with passing_at_once():  # clients do not take part in a study that is damaged
            return federation.serve(), Ejections(out).read()

    files = ["federated-study.toml", "SHA256SUMS", "ejected.json", "result.json", "events.jsonl"]
    readings = {"who is ejected": Reading(lambda out: Ejections(out).read()), "report": Reading(report)}
    return Trial(federation.out, files, readings | {"go on": Reading(go_on)}, damaged_files)


def of_node(folder: Path) -> Trial:
    """What a client keeps: its record, and its part in a secure sum."""
    record = Control(torch.arange(5.0))
    ClientState(folder, Control).save(3, record, set())
    session = Session("s", "about", 2, 2, b"c" * 32, b"m" * 32, b"e" * 32, ("delta",), (0,), 6, b"d" * 32)
    sums = SessionFolder(folder / "secure-sum")
    sums.begin(session, {"delta": np.arange(6).reshape(2, 3)})
    unmasked = UnmaskedRounds(folder / "unmasked")
    with unmasked.locked():
        unmasked.claim(3, "here", (0, 2))

    def read(folder: Path) -> Any:
        state, sums = ClientState(folder, Control), SessionFolder(folder / "secure-sum")
        unmasked = UnmaskedRounds(folder / "unmasked")
        session = sums.load("s")
        kept = [state.load(3, Control(torch.zeros(5))).tensors(), session, sums.summand(session)]
        return [], repr([*kept, [unmasked.of(t, "here", "study") for t in range(9)]])

    names = ("secure-sum/session.json", "secure-sum/summand.safetensors", "unmasked/unmasked.json")
    files = ["round-00000003.safetensors", *names]
    return Trial(folder, files, {"go on": Reading(read)}, None)


FOLDERS: dict[str, Callable[[Path], Trial]] = {
    "search": of_search, "study": of_study, "federation": of_federation, "node": of_node,
}  # fmt: skip


def main() -> None:
    """Print what came of the damages to each file, and what should not have."""
    number = int(sys.argv[1])
    torch.set_num_threads(1)
    logging.disable()
    with TemporaryDirectory() as folder:
        for name in sys.argv[2:] or FOLDERS:
            trial = FOLDERS[name](Path(folder) / name)
            trial.carry_out(number)
            for file in trial.files:
                print(name, file, f"tried {trial.tried[file]}:", dict(trial.outcomes[file]), flush=True)
            print(*trial.wrong, sep="\n", flush=True)


if __name__ == "__main__":
    main()

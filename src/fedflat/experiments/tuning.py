"""Searches the hyper-parameters of several methods, with one budget for all, by the accuracy on validation samples.

Successive halving: every configuration is trained for the first number of rounds; the best of each method go on to the
next number; the best one after the last number is chosen. The test set is not looked at.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from ..core.errors import InputError
from ..files import make_folder, read_json, write_atomically
from .extension import extend_run, with_rounds
from .interrupt import StopRequest, stop_between_rounds
from .run_directory import RunDirectory, StoredRun, difference
from .runner import RunObserver
from .selection import study_of
from .spec import RunSpec, StudySpec
from .studies import Jobs, carry_out_all, check_folders, number_of_jobs
from .tuning_spec import Configuration, Point, TuningSpec

SETTINGS, LEDGER, CURVES, WINNERS = "tune.toml", "ledger.json", "curves.csv", "winners.toml"
JUDGED = 5  # a configuration is judged by its evaluations in the last of so many parts of its rounds
OF_COMPARISON = {"flatness", "probes", "rounds", "seeds"}  # settings that no trial has


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Tried:
    """One configuration after one step of the search; one entry of the ledger."""

    method: int  # its place in the file
    number: int  # of the configuration; 0 are the settings of the file
    values: dict[str, Any]  # what differs from the file, by key
    rounds: int
    curves: dict[int, list[tuple[int, float]]]  # (round from 1, validation accuracy in [0, 1]) of every seed that ended
    gradients: float  # minibatch gradients, of all seeds together
    diverged: list[int]  # the seeds with which it diverged

    @property
    def score(self) -> float:
        """Mean validation accuracy of the last fifth of the rounds, over the seeds; -inf if it diverged."""
        if self.diverged:
            return -inf
        first = self.rounds * (JUDGED - 1) / JUDGED
        return fmean(fmean([x for t, x in curve if t > first] or [curve[-1][1]]) for curve in self.curves.values())


@dataclass(frozen=True)
class Tuned:
    """The result of the search for one method."""

    label: str
    steps: tuple[tuple[Tried, ...], ...]  # every step's configurations, best first

    @property
    def winner(self) -> Tried:
        """The best configuration after the last step."""
        return self.steps[-1][0]

    @property
    def given(self) -> tuple[Tried, Tried]:
        """The file's own settings at the last step they reached, and the winner at that step."""
        for step in reversed(self.steps):
            found = {one.number: one for one in step}
            if 0 in found:
                return found[0], found[self.winner.number]
        raise AssertionError("the first step has every configuration")

    @property
    def ties(self) -> list[int]:
        """After how many rounds some of equally good configurations went on, so that their numbers decided which."""
        went_on = [{one.number for one in step} for step in self.steps[1:]] + [{self.winner.number}]
        found = []
        for step, numbers in zip(self.steps, went_on, strict=True):
            worst = min(one.score for one in step if one.number in numbers)
            if any(one.score == worst for one in step if one.number not in numbers and not one.diverged):
                found.append(step[0].rounds)
        return found


def tune(
    spec: TuningSpec, path: Path, observer: RunObserver | None = None, jobs: Jobs = 1, strict: bool = False
) -> list[Tuned]:
    """Carry out the search in the folder `path`, from where it was, and write its ledger, curves and winners.

    jobs, strict: as of `studies.study`. A configuration that diverges is the worst. Raises InputError if the folder
    holds another search, or if all configurations of a method have diverged, and Interrupted after a signal.
    """
    number_of_jobs(jobs, spec.device, 1)  # refused before there is a folder
    _begin(spec, path)
    ledger = _read(path / LEDGER)
    with stop_between_rounds() as request:
        going = [spec.configurations_of(method) for method in spec.methods]
        for rounds in spec.tune.rounds:
            if rounds not in {one.rounds for one in ledger}:
                ledger += _step(spec, path, going, rounds, observer or RunObserver(), request, jobs, strict)
                _write(path, spec, ledger)
            going = [_best(spec, place, some, _at(ledger, place, rounds)) for place, some in enumerate(going)]
    found = [
        Tuned(method.label, tuple(tuple(_ranked(_at(ledger, place, rounds))) for rounds in spec.tune.rounds))
        for place, method in enumerate(spec.methods)
    ]
    winners = winning_study(spec, found)
    write_atomically(path / WINNERS, partial(Path.write_text, data=winners.to_toml()))
    return found


def planned_runs(spec: TuningSpec, path: Path) -> list[RunSpec]:
    """As many runs as are left, with their rounds, to foresee the time; which configurations go on is not known."""
    done = {one.rounds for one in _read(path / LEDGER)}
    runs: list[RunSpec] = []
    for method in spec.methods:
        configurations = spec.configurations_of(method)
        for rounds, size in zip(spec.tune.rounds, spec.sizes(len(configurations)), strict=True):
            runs += [] if rounds in done else spec.trials(configurations[:size], rounds)
    return runs


def winning_study(spec: TuningSpec, found: Sequence[Tuned]) -> StudySpec:
    """The comparison of the winners, by the seeds and for the rounds that the file gives for it."""
    winners = [Configuration(method, one.winner.number, one.winner.values)
               for method, one in zip(spec.methods, found, strict=True)]  # fmt: skip
    return study_of([spec.trial(winner, spec.seeds[0], spec.rounds) for winner in winners], spec, spec.seeds)


def _begin(spec: TuningSpec, path: Path) -> None:
    """Make the folder and write the settings. Raises InputError if it holds another search, or a run or study."""
    for name in ("config.toml", "study.toml"):
        if (path / name).exists():
            raise InputError(f"--out {path} holds a run or a study; choose another folder for a search")
    if (path / SETTINGS).exists():
        old, new = (_deciding(one) for one in (TuningSpec.load(path / SETTINGS), spec))
        if found := difference(old, new):
            raise InputError(
                f"--out {path} holds another search: {found}; choose another folder with --out, or remove this one"
            )
    make_folder(path)
    write_atomically(path / SETTINGS, partial(Path.write_text, data=spec.to_toml()))


def _deciding(spec: TuningSpec) -> dict[str, Any]:
    """The settings that a search depends on; seeds and rounds of the comparison may change after it."""
    return {name: value for name, value in spec.decisive().items() if name not in OF_COMPARISON}


def _step(
    spec: TuningSpec,
    path: Path,
    going: Sequence[Sequence[Configuration]],
    rounds: int,
    observer: RunObserver,
    request: StopRequest,
    jobs: Jobs,
    strict: bool,
) -> list[Tried]:
    """Train the configurations that are `going`, by method, up to `rounds` rounds."""
    trials = spec.trials([one for some in going for one in some], rounds)
    runs = [(trial, _directory(spec, trial, path)) for trial in trials]
    check_folders(runs)
    for trial, directory in runs:
        if directory.is_finished:
            directory.check_same_run(trial, any_rounds=True)
            if directory.spec().rounds < rounds:
                _prolong(directory, rounds, strict)
    left = [(trial, directory) for trial, directory in runs if not _is_longer(directory, rounds)]
    carry_out_all(left, number_of_jobs(jobs, spec.device, len(left) or 1), observer, request, strict)
    seeds = len(spec.tune.seeds)
    ended = [[directory for _, directory in runs[i : i + seeds]] for i in range(0, len(runs), seeds)]
    numbered = [(place, one) for place, some in enumerate(going) for one in some]
    return [_tried(place, one, rounds, own) for (place, one), own in zip(numbered, ended, strict=True)]


def _is_longer(directory: RunDirectory, rounds: int) -> bool:
    """Whether a trial has finished more rounds already; its ledger was lost, and its first rounds are the same."""
    return directory.is_finished and directory.spec().rounds > rounds


def _prolong(directory: RunDirectory, rounds: int, strict: bool) -> None:
    """Make a finished trial one of more rounds; if it has no checkpoint any more, it begins anew."""
    if directory.checkpoints:
        extend_run(directory, rounds, strict)
    else:
        with directory.writing():
            directory.reopen(with_rounds(directory.spec(), rounds))


def _directory(spec: TuningSpec, trial: RunSpec, path: Path) -> RunDirectory:
    """The folder of a trial, which is the same at every step."""
    last = trial.model_copy(update={"rounds": spec.tune.rounds[-1]})
    return RunDirectory(path / "trials" / f"{trial.label}-{last.digest()}")


def _tried(place: int, configuration: Configuration, rounds: int, directories: Sequence[RunDirectory]) -> Tried:
    """The entry of the ledger for one configuration of the method at `place`."""
    finished = [StoredRun.open(directory.path) for directory in directories if directory.is_finished]
    curves = {run.seed: _curve(run, rounds) for run in finished}
    gradients = sum(_gradients(run, rounds) for run in finished)
    diverged = [directory.spec().seed for directory in directories if not directory.is_finished]
    return Tried(place, configuration.number, configuration.values, rounds, curves, gradients, diverged)


def _curve(run: StoredRun, rounds: int) -> list[tuple[int, float]]:
    """(round from 1, validation accuracy) at every evaluation in the first `rounds`."""
    t, accuracy = (run.metrics[name].to_pylist() for name in ("t", "validation_accuracy"))
    return [(int(t) + 1, x) for t, x in zip(t, accuracy, strict=True) if x is not None and t < rounds]


def _gradients(run: StoredRun, rounds: int) -> float:
    """The gradients of the first `rounds`."""
    found: float = run.metrics["gradients"][rounds - 1].as_py()
    return found


def _at(ledger: Sequence[Tried], place: int, rounds: int) -> list[Tried]:
    return [one for one in ledger if (one.method, one.rounds) == (place, rounds)]


def _ranked(tried: Sequence[Tried]) -> list[Tried]:
    """Best first; of equal ones, the one that was drawn first."""
    return sorted(tried, key=lambda one: (-one.score, one.number))


def _best(
    spec: TuningSpec, place: int, configurations: Sequence[Configuration], tried: Sequence[Tried]
) -> list[Configuration]:
    """The configurations of the method at `place` that go on. Raises InputError if all have diverged."""
    best = _ranked(tried)[: ceil(len(tried) / spec.tune.one_in)]
    numbers = {one.number for one in best if not one.diverged}
    if not numbers:
        which = "every configuration" if tried[0].rounds == spec.tune.rounds[0] else "every configuration that went on"
        raise InputError(
            f"methods: {which} of {spec.methods[place].label} has diverged within {tried[0].rounds} rounds; "
            "give tune.box smaller step sizes (client.lr)"
        )
    return [one for one in configurations if one.number in numbers]


def _read(path: Path) -> list[Tried]:
    """The steps of the search that are complete. Raises InputError, naming the file, if it is damaged."""
    if not path.exists():
        return []
    try:
        return TypeAdapter(list[Tried]).validate_python(read_json(path))
    except ValidationError as error:
        raise InputError(
            f"{path} is no ledger of a search; put back a copy of it, or search again in another folder"
        ) from error


def _write(path: Path, spec: TuningSpec, ledger: Sequence[Tried]) -> None:
    """The ledger, and its curves as a table: a row for each configuration, seed and evaluation."""
    text = json.dumps([asdict(one) for one in ledger], indent=1) + "\n"
    write_atomically(path / LEDGER, partial(Path.write_text, data=text))
    rows: list[dict[str, Any]] = [
        {"method": spec.methods[one.method].label, "configuration": one.number, "settings": described(one.values),
         "rounds": one.rounds, "seed": seed, "round": t, "validation_accuracy": accuracy}
        for one in ledger for seed, curve in one.curves.items() for t, accuracy in curve
    ]  # fmt: skip

    def write(file: Path) -> None:
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]) if rows else ["method"])
            writer.writeheader()
            writer.writerows(rows)

    write_atomically(path / CURVES, write)


def described(values: Point) -> str:
    """`rho=0.1, lr=0.05`; the settings of the file where nothing differs."""
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items()) or "those of the file"

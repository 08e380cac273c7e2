"""The ledger of a search: a file with the results of all trials after each step, checked against the trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from ..core.errors import InputError
from ..files import read_json, read_text
from ..rounds.checksums import Checksums
from .csv_text import csv_line
from .run_directory import RunDirectory
from .spec import RunSpec
from .tuning_spec import Configuration, Point, TuningSpec

LEDGER, CURVES = "ledger.json", "curves.csv"
JUDGED = 5  # a configuration is judged by its evaluations in the last fifth of its rounds
COLUMNS = ("method", "configuration", "settings", "rounds", "seed", "round", "validation_accuracy")  # of curves.csv
AGAIN = "remove it, and the same command makes it again from the trials"


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Tried:
    """One configuration after one step of the search; one entry of the ledger."""

    method: int  # index of the method in the file
    number: int  # number of the configuration; 0 for the settings of the file
    values: dict[str, Any]  # the settings that differ from the file, by key
    rounds: int
    # By seed of each finished trial: (round from 1, validation accuracy in [0, 1]).
    curves: dict[int, list[tuple[int, float]]]
    gradients: float  # minibatch gradients, of all seeds together
    diverged: list[int]  # the seeds whose trials diverged

    @property
    def score(self) -> float:
        """Mean validation accuracy of the last fifth of the rounds, over the seeds; -inf if a seed diverged."""
        if self.diverged:
            return -inf
        first = self.rounds * (JUDGED - 1) / JUDGED
        return fmean(fmean([x for t, x in curve if t > first] or [curve[-1][1]]) for curve in self.curves.values())


@dataclass(frozen=True)
class Ledger:
    """The files ledger.json and curves.csv in the folder of a search."""

    path: Path
    spec: TuningSpec

    @property
    def checksums(self) -> Checksums:
        """The digests of the files of the search."""
        return Checksums(self.path, required=True)

    def read(self) -> list[Tried]:
        """Read the entries of all complete steps; return an empty list if there is no ledger.

        Raises InputError, naming the file, if the ledger is damaged or does not agree with the trials in the folder.
        """
        file = self.path / LEDGER
        if not file.exists():
            return []
        if problem := self.checksums.problem(LEDGER):
            raise self._damaged(problem)
        try:
            found = TypeAdapter(list[Tried]).validate_python(read_json(file))
        except ValidationError as error:
            raise InputError(f"{file} is no ledger of a search; {AGAIN}") from error
        self._check(found)
        return found

    def write(self, entries: Sequence[Tried]) -> None:
        """Write ledger.json and curves.csv."""
        text = json.dumps([asdict(one) for one in entries], indent=1) + "\n"
        self.checksums.write(LEDGER, partial(Path.write_bytes, data=text.encode()))
        self.write_curves(entries)

    def write_curves(self, entries: Sequence[Tried]) -> None:
        """Write curves.csv if its content changed: a row for each configuration, seed and evaluation."""
        text = self.curves_text(entries)
        if self.checksums.problem(CURVES) or read_text(self.path / CURVES) != text:
            self.checksums.write(CURVES, partial(Path.write_bytes, data=text.encode()))

    def curves_text(self, entries: Sequence[Tried]) -> str:
        """Return the content of curves.csv."""
        rows = [
            (self.spec.methods[one.method].label, one.number, described(one.values), one.rounds, seed, t, accuracy)
            for one in entries for seed, curve in one.curves.items() for t, accuracy in curve
        ]  # fmt: skip
        return "".join(map(csv_line, [COLUMNS, *rows]))

    def entry(self, place: int, configuration: Configuration, rounds: int) -> Tried:
        """Make the entry of one configuration after `rounds` rounds, from its trials, which must have ended.

        place: index of the configuration's method in the file.

        Raises InputError if a trial was trained for more rounds, and was not evaluated after `rounds` rounds.
        """
        directories = self._trials(configuration)
        finished = {seed: one.rows() for seed, one in directories.items() if one.is_finished}
        if any(len(rows) > rounds for rows in finished.values()) and rounds % self.spec.eval_every:
            raise InputError(
                f"{self.path / LEDGER} is missing and cannot be made again: trials went beyond {rounds} rounds, "
                f"which eval_every = {self.spec.eval_every} does not divide; restore a copy, or choose another folder"
            )
        curves = {seed: _curve(rows, rounds) for seed, rows in finished.items()}
        gradients = sum(rows[rounds - 1]["gradients"] for rows in finished.values())
        diverged = [seed for seed, one in directories.items() if not one.is_finished]
        return Tried(place, configuration.number, configuration.values, rounds, curves, gradients, diverged)

    def directory(self, trial: RunSpec) -> RunDirectory:
        """Return the folder of a trial, which is the same at every step."""
        last = trial.model_copy(update={"rounds": self.spec.tune.rounds[-1]})
        return RunDirectory(self.path / "trials" / f"{trial.label}-{last.digest()}")

    def _trials(self, configuration: Configuration) -> dict[int, RunDirectory]:
        """Return the folders of a configuration's trials, by seed."""
        return {trial.seed: self.directory(trial) for trial in self.spec.trials([configuration], 1)}

    def _check(self, entries: Sequence[Tried]) -> None:
        """Raise InputError unless the entries are those of this search's first steps, and agree with its trials."""
        going = [self.spec.configurations_of(method) for method in self.spec.methods]
        left = list(entries)
        for rounds in self.spec.tune.rounds if entries else ():
            for place, some in enumerate(going):
                tried, left = left[: len(some)], left[len(some) :]
                expected = [(place, one.number, one.values, rounds) for one in some]
                if [(one.method, one.number, one.values, one.rounds) for one in tried] != expected:
                    raise self._damaged(f"its entries of {rounds} rounds are not this search's")
                for entry, configuration in zip(tried, some, strict=True):
                    self._compare(entry, configuration)
                numbers = survivors(tried, self.spec.tune.one_in)
                going[place] = [one for one in some if one.number in numbers]
            if not left:
                return
        if left:
            raise self._damaged("it has more entries than this search")

    def _compare(self, entry: Tried, configuration: Configuration) -> None:
        """Raise InputError if an entry disagrees with one of its trials; missing trials are not compared."""
        trials, gradients = self._trials(configuration), 0.0
        wrong = {*entry.curves, *entry.diverged} ^ trials.keys()
        for seed, directory in trials.items():
            rows = directory.rows()
            rows, is_longer = rows[: entry.rounds], len(rows) > entry.rounds or not directory.is_finished
            if directory.is_finished and (seed in entry.diverged or len(rows) < entry.rounds):
                wrong.add(seed)
            if len(rows) == entry.rounds and seed not in entry.diverged:
                gradients += rows[-1]["gradients"]
                curve = entry.curves.get(seed, [])
                if is_longer and entry.rounds % self.spec.eval_every:  # a longer trial was not evaluated then
                    curve = [point for point in curve if point[0] != entry.rounds]
                if curve != _curve(rows, entry.rounds):
                    wrong.add(seed)
            elif seed not in entry.diverged:
                gradients = inf  # its trial is missing
        if wrong or (gradients < inf and gradients != entry.gradients):
            name = f"{self.spec.methods[entry.method].label}, configuration {entry.number}, {entry.rounds} rounds"
            raise self._damaged(f"for {name} it does not agree with the trials")

    def _damaged(self, problem: str) -> InputError:
        return InputError(f"{self.path / LEDGER} is damaged: {problem}; {AGAIN}")


def survivors(tried: Sequence[Tried], one_in: int) -> set[int]:
    """Return the numbers of the configurations of one method that reach the next step; none if all have diverged."""
    return {one.number for one in ranked(tried)[: ceil(len(tried) / one_in)] if not one.diverged}


def ranked(tried: Sequence[Tried]) -> list[Tried]:
    """Sort the configurations, the best first; ties are broken by draw order."""
    return sorted(tried, key=lambda one: (-one.score, one.number))


def described(values: Point) -> str:
    """Describe the settings that differ from the file, such as `rho=0.1, lr=0.05`."""
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items()) or "those of the file"


def _curve(rows: Sequence[Mapping[str, Any]], rounds: int) -> list[tuple[int, float]]:
    """Return (round from 1, validation accuracy) at every evaluation in the first `rounds`."""
    found = [(int(row["t"]) + 1, row.get("validation_accuracy")) for row in rows if row["t"] < rounds]
    return [(t, accuracy) for t, accuracy in found if accuracy is not None]

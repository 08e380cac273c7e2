"""Chooses the hyper-parameters of several methods by accuracy on validation samples; the test set is not used.

`tune` searches with equal budgets by successive halving. Every configuration is trained for the first number of rounds
in `tune.rounds`. The best configurations of each method are trained up to the next number of rounds, and so on. After
the last number of rounds, the best configuration of each method is chosen.

`choices` ranks the runs of a study. The settings of a method and of its local training are chosen; data, partition,
model and all other settings define the problem for which they are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..files import writing
from ..rounds.checksums import Checksums
from ..rounds.settings import settings_key
from .interrupt import StopRequest, stop_between_rounds
from .jobs import Jobs
from .ledger import CURVES, LEDGER, Ledger, Tried, ranked, survivors
from .run_directory import StoredRun, difference
from .run_queue import RunQueue
from .runner import RunObserver
from .settings_tables import variants
from .spec import Experiment, RunSpec, StudySpec
from .statistics import MeanEstimate, mean_estimate
from .studies import ONE, carry_out_all, check_folders, extend_run, with_rounds
from .tuning_spec import CHOSEN, Configuration, TuningSpec

WORST_TENTH = "validation_accuracy_worst_tenth"
SETTINGS, WINNERS = "tune.toml", "winners.toml"
OF_COMPARISON = {"flatness", "probes", "rounds", "seeds"}  # settings of the comparison, which trials do not use


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
        """The file's settings at the last step that they reached, and the winner at the same step."""
        for step in reversed(self.steps):
            by_number = {tried.number: tried for tried in step}
            if 0 in by_number:
                return by_number[0], by_number[self.winner.number]
        raise AssertionError("the first step has every configuration")

    @property
    def ties(self) -> list[int]:
        """The numbers of rounds after which a configuration was dropped although a kept one had the same score."""
        kept = [{tried.number for tried in step} for step in self.steps[1:]] + [{self.winner.number}]
        ties = []
        for step, numbers in zip(self.steps, kept, strict=True):
            worst = min(tried.score for tried in step if tried.number in numbers)
            if any(tried.score == worst for tried in step if tried.number not in numbers and not tried.diverged):
                ties.append(step[0].rounds)
        return ties


def tune(
    spec: TuningSpec, path: Path, observer: RunObserver | None = None, jobs: Jobs = ONE, strict: bool = False
) -> list[Tuned]:
    """Carry out or resume the search in the folder `path`, and write its ledger, curves and winners.

    jobs, strict: as for `studies.carry_out_study`. A configuration that diverges ranks last. Raises InputError if the
    folder holds another search, or if all configurations of a method have diverged, and Interrupted after a signal.
    """
    with _writing(spec, path), stop_between_rounds() as request:
        ledger = Ledger(path, spec)
        entries = ledger.read()
        remaining = [spec.configurations_of(method) for method in spec.methods]
        for rounds in spec.tune.rounds:
            if rounds not in {one.rounds for one in entries}:
                entries += _step(ledger, remaining, rounds, observer or RunObserver(), request, jobs, strict)
                ledger.write(entries)
            remaining = [
                _best(spec, place, configurations, _at(entries, place, rounds))
                for place, configurations in enumerate(remaining)
            ]
        ledger.write_curves(entries)
        found = result(spec, entries)
        text = winning_study(spec, found).to_toml()
        ledger.checksums.write(WINNERS, partial(Path.write_bytes, data=text.encode()))
    return found


def result(spec: TuningSpec, entries: Sequence[Tried]) -> list[Tuned]:
    """Return the result of each method, from the entries of a ledger that has all steps."""
    return [
        Tuned(method.label, tuple(tuple(ranked(_at(entries, place, rounds))) for rounds in spec.tune.rounds))
        for place, method in enumerate(spec.methods)
    ]


def planned_runs(spec: TuningSpec, path: Path) -> list[RunSpec]:
    """Return runs for an estimate of the remaining time: as many as the unfinished steps will have.

    Which configurations reach the later steps is not known yet. In their place, the first configurations of each
    method are returned.
    """
    done = {one.rounds for one in Ledger(path, spec).read()}
    runs: list[RunSpec] = []
    for method in spec.methods:
        configurations = spec.configurations_of(method)
        for rounds, size in zip(spec.tune.rounds, spec.sizes(len(configurations)), strict=True):
            runs += [] if rounds in done else spec.trials(configurations[:size], rounds)
    return runs


def winning_study(spec: TuningSpec, found: Sequence[Tuned]) -> StudySpec:
    """Return the study that compares the winners, with the seeds and rounds of the file."""
    winners = [Configuration(method, one.winner.number, one.winner.values)
               for method, one in zip(spec.methods, found, strict=True)]  # fmt: skip
    return study_of([spec.trial(winner, spec.seeds[0], spec.rounds) for winner in winners], spec, spec.seeds)


def worst_tenths(spec: TuningSpec, path: Path, found: Sequence[Tuned]) -> list[float | None]:
    """Return for each winner the mean validation accuracy of the worst tenth of the clients, by its final models.

    It is the mean over the seeds; None for trials from before it was written. `found` is the result of the search in
    the folder `path`.
    """
    ledger, shares = Ledger(path, spec), []
    for method, one in zip(spec.methods, found, strict=True):
        winner = Configuration(method, one.winner.number, one.winner.values)
        trials = [ledger.directory(trial) for trial in spec.trials([winner], one.winner.rounds)]
        shares.append(worst_tenth([StoredRun.open(trial.path) for trial in trials]))
    return shares


def worst_tenth(runs: Sequence[StoredRun]) -> float | None:
    """Return the mean validation accuracy of the worst tenth of the clients, over `runs`; None if a run has none."""
    found = [run.summary.get(WORST_TENTH) for run in runs]
    known = [value for value in found if value is not None]
    return mean_estimate(known).mean if len(known) == len(found) else None


def settings_of(path: Path) -> TuningSpec:
    """Read the settings of the search in the folder `path`. Raises InputError if they are damaged."""
    return TuningSpec.load(Checksums(path, required=True).check(SETTINGS))


@contextmanager
def _writing(spec: TuningSpec, path: Path) -> Iterator[None]:
    """Make the folder, hold its lock inside the block, and write the settings.

    Raises InputError if another process writes the folder, or if it holds another search, or a run or study.
    """
    for name in ("config.toml", "study.toml"):
        if (path / name).exists():
            raise InputError(f"--out {path} holds a run or a study; choose another folder for a search")
    checksums = Checksums(path, required=True)
    with writing(path, f"--out {path} is being written by another search"):
        for name in (LEDGER, CURVES, WINNERS):
            if not (path / name).exists():
                checksums.remove(name)
        if (path / SETTINGS).exists():
            old, new = (comparable(one) for one in (settings_of(path), spec))
            if found := difference(old, new):
                raise InputError(
                    f"--out {path} holds another search: {found}; choose another folder with --out, or remove this one"
                )
        checksums.write(SETTINGS, partial(Path.write_bytes, data=spec.to_toml().encode()))
        yield


def comparable(spec: Experiment) -> dict[str, Any]:
    """Return the settings of a search or of its winners, except those of the comparison, which may change."""
    return {name: value for name, value in spec.decisive().items() if name not in OF_COMPARISON}


def _step(
    ledger: Ledger,
    remaining: Sequence[Sequence[Configuration]],
    rounds: int,
    observer: RunObserver,
    request: StopRequest,
    jobs: Jobs,
    strict: bool,
) -> list[Tried]:
    """Train the `remaining` configurations of each method up to `rounds` rounds; return their entries of the ledger."""
    trials = ledger.spec.trials([one for configurations in remaining for one in configurations], rounds)
    runs = [(trial, ledger.directory(trial)) for trial in trials]
    check_folders(runs)
    for trial, directory in runs:
        if directory.has_begun:
            directory.check_same_run(trial, any_rounds=True)
            own = directory.spec()
            if own.rounds < rounds and directory.checkpoints:  # finished, or killed while it was extended
                extend_run(directory, rounds, strict)
            elif own.rounds < rounds:
                with directory.writing():
                    directory.reopen(with_rounds(own, rounds))
    # If the ledger was lost, a trial may have finished more rounds; its first rounds are those of this step.
    left = [(trial, one) for trial, one in runs if not (one.is_finished and one.spec().rounds > rounds)]
    number = jobs.count(ledger.spec.device, len(left) or 1)
    carry_out_all(RunQueue(left), number, observer, request, strict)
    return [
        ledger.entry(place, one, rounds) for place, configurations in enumerate(remaining) for one in configurations
    ]


def _at(ledger: Sequence[Tried], place: int, rounds: int) -> list[Tried]:
    return [one for one in ledger if (one.method, one.rounds) == (place, rounds)]


def _best(
    spec: TuningSpec, place: int, configurations: Sequence[Configuration], tried: Sequence[Tried]
) -> list[Configuration]:
    """Return the configurations of the method at `place` that reach the next step.

    tried: the entries of `configurations` after this step. Raises InputError if all have diverged.
    """
    numbers = survivors(tried, spec.tune.one_in)
    if not numbers:
        which = "every configuration" if tried[0].rounds == spec.tune.rounds[0] else "every remaining configuration"
        raise InputError(
            f"methods: {which} of {spec.methods[place].label} has diverged within {tried[0].rounds} rounds; "
            "give tune.box smaller step sizes (client.lr)"
        )
    return [one for one in configurations if one.number in numbers]


@dataclass(frozen=True)
class Candidate:
    """One set of settings of a method on one problem, with its runs."""

    spec: RunSpec  # of the first seed
    runs: tuple[StoredRun, ...]  # one for each seed
    validation: MeanEstimate  # accuracy on the clients' validation samples, in [0, 1]


@dataclass(frozen=True)
class RankedSettings:
    """The candidates of one method on one problem, best first."""

    problem: str  # the settings that distinguish it from the study's other problems; empty for a single problem
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The candidate with the best mean; ties are broken by the order in the study."""
        return self.candidates[0]


def choices(runs: Sequence[StoredRun]) -> list[RankedSettings]:
    """Rank the settings of each method of finished runs, for each problem.

    Candidates are ranked by validation accuracy: the mean over the last evaluations (the setting `last`) and over the
    seeds. Raises InputError for runs without validation samples, and for candidates with different seeds.
    """
    specs = [run.directory.spec() for run in runs]
    problems = _grouped([_without(spec, (*CHOSEN, "seed")) for spec in specs])
    names = variants([_without(specs[places[0]], (*CHOSEN, "seed")) for places in problems])
    rankings = []
    for name, places in zip(names, problems, strict=True):
        methods: dict[str, list[int]] = {}
        for place in places:
            methods.setdefault(specs[place].method.full_name, []).append(place)
        rankings += [RankedSettings(name, _ranked(own, specs, runs)) for own in methods.values()]
    return rankings


def chosen_study(chosen: Sequence[RankedSettings]) -> StudySpec:
    """Return the study of the best settings of each method on one problem, with the same seeds."""
    seeds = sorted(run.seed for run in chosen[0].best.runs)
    return study_of([choice.best.spec for choice in chosen], chosen[0].best.spec, seeds)


def study_of(runs: Sequence[RunSpec], shared: Experiment, seeds: Sequence[int]) -> StudySpec:
    """Return the study of the methods and client settings of `runs`; all other settings are those of `shared`."""
    own = {run.method.full_name: vars(run.client) for run in runs}
    first = vars(runs[0].client)
    same = {name: value for name, value in first.items() if all(client[name] == value for client in own.values())}
    differing = {name: {k: x for k, x in client.items() if k not in same} for name, client in own.items()}
    settings: dict[str, Any] = {name: getattr(shared, name) for name in Experiment.model_fields} | {
        "client": same,
        "methods": [run.method for run in runs],
        "client_of": {name: client for name, client in differing.items() if client},
        "seeds": list(seeds),
    }
    return StudySpec(**settings)


def _without(spec: RunSpec, names: Sequence[str]) -> dict[str, object]:
    return {name: value for name, value in spec.decisive().items() if name not in names}


def _grouped(tables: Sequence[dict[str, object]]) -> list[list[int]]:
    """Group equal tables; return the positions of each group, in the order of first appearance."""
    groups: dict[str, list[int]] = {}
    for place, table in enumerate(tables):
        groups.setdefault(settings_key(table), []).append(place)
    return list(groups.values())


def _ranked(places: Sequence[int], specs: Sequence[RunSpec], runs: Sequence[StoredRun]) -> tuple[Candidate, ...]:
    """Return the candidates of one method on one problem, best first.

    places: the positions of the runs of this method on this problem in `specs` and `runs`. Raises InputError if the
    candidates have different seeds.
    """
    candidates = []
    for group in _grouped([_without(specs[place], ("seed",)) for place in places]):
        own = [places[i] for i in group]
        values = [validation_accuracy(runs[place], specs[place].last) for place in own]
        candidates.append(Candidate(specs[own[0]], tuple(runs[place] for place in own), mean_estimate(values)))
    seeds = {tuple(sorted(run.seed for run in candidate.runs)) for candidate in candidates}
    if len(seeds) > 1:
        raise InputError(
            f"{candidates[0].spec.method.label}: some settings have seeds {max(seeds, key=len)} and others "
            f"{min(seeds, key=len)}; finish the study first (`fedflat resume`)"
        )
    return tuple(sorted(candidates, key=lambda candidate: -candidate.validation.mean))


def validation_accuracy(run: StoredRun, last: int) -> float:
    """Return the mean of the `last` newest validation accuracies. Raises InputError for a run that has none."""
    names = run.metrics.column_names
    column = run.metrics["validation_accuracy"].to_pylist() if "validation_accuracy" in names else []
    values = [value for value in column if value is not None]
    if not values:
        raise InputError(
            f"{run.directory.path} has no validation samples to choose by; set data.validation, e.g. to 0.1, and train "
            "again: settings are not chosen by the test set"
        )
    return mean_estimate(values[-last:]).mean

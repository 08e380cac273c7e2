"""Chooses the best settings of each method among the runs of a study, by accuracy on validation samples.

The settings of a method and of its local training are chosen; data, partition, model and all other settings define
the problem they are chosen for. The test set is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from ..rounds.settings import settings_key
from .run_directory import StoredRun
from .settings_tables import variants
from .spec import Experiment, RunSpec, StudySpec
from .statistics import MeanEstimate, mean_estimate
from .tuning_spec import CHOSEN


@dataclass(frozen=True)
class Candidate:
    """One setting of a method on one problem."""

    spec: RunSpec  # of its first seed
    runs: tuple[StoredRun, ...]  # one for each seed
    validation: MeanEstimate  # accuracy on the clients' validation samples, in [0, 1]


@dataclass(frozen=True)
class RankedSettings:
    """The settings of one method on one problem, best first."""

    problem: str  # its difference from the study's other problems; empty for a single problem
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The candidate with the best mean; ties are broken by the order in the study."""
        return self.candidates[0]


def choices(runs: Sequence[StoredRun]) -> list[RankedSettings]:
    """Rank the settings of each method of finished runs, for each problem.

    Candidates are ranked by the mean over their seeds of the mean validation accuracy at the last evaluations (`last`).
    Raises InputError for runs without validation samples, and for candidates with different seeds.
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
    """Return the candidates among the runs of one method on one problem, best first."""
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
    """Return the mean of a run's last validation accuracies. Raises InputError if it has no validation samples."""
    names = run.metrics.column_names
    column = run.metrics["validation_accuracy"].to_pylist() if "validation_accuracy" in names else []
    values = [value for value in column if value is not None]
    if not values:
        raise InputError(
            f"{run.directory.path} has no validation samples to choose by; set data.validation, e.g. to 0.1, and train "
            "again: settings are not chosen by the test set"
        )
    return mean_estimate(values[-last:]).mean

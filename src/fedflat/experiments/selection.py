"""Choosing hyper-parameters by validation samples: of the runs of a study, the best settings of each method.

The settings of a method and of its local training are chosen; data, partition, model and everything else make the
problem for which they are chosen. The test set is not looked at.
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

    problem: str  # what distinguishes it from the study's other problems; empty if there is one
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The candidate with the best mean; of equal ones, the first of the study."""
        return self.candidates[0]


def choices(runs: Sequence[StoredRun]) -> list[RankedSettings]:
    """The choice for each problem and method of finished runs.

    A candidate is compared by the mean over its seeds of the mean validation accuracy at the last evaluations (`last`).
    Raises InputError for runs without validation samples, and for candidates with different seeds.
    """
    specs = [run.directory.spec() for run in runs]
    problems = _grouped([_without(spec, (*CHOSEN, "seed")) for spec in specs])
    names = variants([_without(specs[places[0]], (*CHOSEN, "seed")) for places in problems])
    found = []
    for name, places in zip(names, problems, strict=True):
        methods: dict[str, list[int]] = {}
        for place in places:
            methods.setdefault(specs[place].method.full_name, []).append(place)
        found += [RankedSettings(name, _ranked(own, specs, runs)) for own in methods.values()]
    return found


def chosen_study(chosen: Sequence[RankedSettings]) -> StudySpec:
    """The study of the best settings of each method on one problem, with the same seeds."""
    seeds = sorted(run.seed for run in chosen[0].best.runs)
    return study_of([choice.best.spec for choice in chosen], chosen[0].best.spec, seeds)


def study_of(runs: Sequence[RunSpec], shared: Experiment, seeds: Sequence[int]) -> StudySpec:
    """The study of the methods of `runs`, with their settings and those of their clients; all else is `shared`."""
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
    """The places of equal tables, in the order of their first."""
    groups: dict[str, list[int]] = {}
    for place, table in enumerate(tables):
        groups.setdefault(settings_key(table), []).append(place)
    return list(groups.values())


def _ranked(places: Sequence[int], specs: Sequence[RunSpec], runs: Sequence[StoredRun]) -> tuple[Candidate, ...]:
    """The candidates among the runs of one method on one problem, best first."""
    found = []
    for group in _grouped([_without(specs[place], ("seed",)) for place in places]):
        own = [places[i] for i in group]
        values = [validation_accuracy(runs[place], specs[place].last) for place in own]
        found.append(Candidate(specs[own[0]], tuple(runs[place] for place in own), mean_estimate(values)))
    seeds = {tuple(sorted(run.seed for run in candidate.runs)) for candidate in found}
    if len(seeds) > 1:
        raise InputError(
            f"{found[0].spec.method.label}: some settings have seeds {max(seeds, key=len)} and others "
            f"{min(seeds, key=len)}; finish the study first (`fedflat resume`)"
        )
    return tuple(sorted(found, key=lambda candidate: -candidate.validation.mean))


def validation_accuracy(run: StoredRun, last: int) -> float:
    """The mean of a run's last validation accuracies. Raises InputError if it has no validation samples."""
    names = run.metrics.column_names
    column = run.metrics["validation_accuracy"].to_pylist() if "validation_accuracy" in names else []
    values = [value for value in column if value is not None]
    if not values:
        raise InputError(
            f"{run.directory.path} has no validation samples to choose by; set data.validation, e.g. to 0.1, and train "
            "again: the test set is not for choosing"
        )
    return mean_estimate(values[-last:]).mean

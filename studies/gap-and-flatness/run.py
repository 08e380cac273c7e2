"""Carries out the study of this folder, from wherever it was stopped.

    python studies/gap-and-flatness/run.py --sets sets --out runs/gap-and-flatness --jobs 2

Every gap, seed and step size of a part is an ordinary study below `--out`, such as `compare/few-0-0.12`; Ctrl-C saves
them, and the same command continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from sets import CHOOSING_SEEDS, CLIENTS, SEEDS

from fedflat.cli.console import Console, in_one_line
from fedflat.cli.progress import watcher
from fedflat.core.errors import NonFiniteError
from fedflat.experiments import studies
from fedflat.experiments.jobs import Jobs
from fedflat.experiments.run_directory import StoredRun
from fedflat.experiments.spec import StudySpec

GAPS = ("few", "many")
STEP_SIZES = (0.03, 0.06, 0.12, 0.24)
RADII = (0.004, 0.02, 0.1, 0.5)
FLAT_OF = {"FedSAM": "FedAvg", "FedLESAM": "FedAvg", "MoFedSAM": "FedCM", "FedSMOO": "FedDyn"}  # with their bases
COEFFICIENTS: dict[str, dict[str, float]] = {
    "FedCM": {"alpha": 0.1}, "MoFedSAM": {"beta": 0.1}, "FedDyn": {"alpha": 0.1}, "FedSMOO": {"beta": 10.0}
}  # fmt: skip
BASES = tuple(dict.fromkeys(FLAT_OF.values()))
ROUNDS = 150
DECAY = 0.99  # of the step size, by round
CHANCE = 0.1  # the accuracy of a run that diverged
MEASURES = ("gradient-norm", "sharpness", {"name": "eigenvalues", "k": 1}, "trace", "lpf")


class Configuration(NamedTuple):
    """A method with its radius (0 for a base) and its step size."""

    method: str
    rho: float
    lr: float

    def table(self) -> dict[str, Any]:
        """Return the table of the method in a study's settings."""
        radius = {"rho": self.rho} if self.method in FLAT_OF else {}
        return {"name": self.method, **COEFFICIENTS.get(self.method, {}), **radius}


GRID = tuple(
    Configuration(method, rho, lr)
    for method in (*BASES, *FLAT_OF)
    for rho in (RADII if method in FLAT_OF else (0.0,))
    for lr in STEP_SIZES
)
Scores = dict[Configuration, float]


def settings(
    folder: Path, seed: int, configurations: Iterable[Configuration], rounds: int = ROUNDS, **changes: Any
) -> StudySpec:
    """Return the study of some configurations with one step size, on the data in `folder`.

    The last round has the same step size, however many there are.
    """
    chosen = list(configurations)
    [lr] = {one.lr for one in chosen}
    table: dict[str, Any] = {
        "data": {"name": "npz", "clients": CLIENTS},
        "data_dir": str(folder),
        "partition": {"name": "natural"},
        "model": {"name": "cnn"},
        "client": {"lr": lr, "lr_decay": DECAY ** (ROUNDS / rounds), "epochs": None, "steps": 10, "batch_size": 20},
        "methods": [one.table() for one in chosen],
        "seeds": [seed],
        "participation": 10,
        "rounds": rounds,
        "eval_every": 10,
        "last": 3,
        "flatness": [],
        "checkpoint_every": 50,
        "workers": 1,
        "device": "cpu",
        "executor": "stacked",
    }
    return StudySpec(**table | changes)


class Study:
    """The parts of the plan, in their folders."""

    def __init__(self, sets: Path, out: Path, jobs: Jobs) -> None:
        self._sets, self._out, self._jobs, self._console = sets, out, jobs, Console()

    def carry_out(
        self, part: str, gap: str, seeds: Sequence[int], configurations: Sequence[Configuration], **changes: Any
    ) -> dict[Configuration, list[float]]:
        """Carry out configurations with every seed; return the accuracies of each, by seed in order."""
        places = [(seed, lr) for seed in seeds for lr in dict.fromkeys(one.lr for one in configurations)]
        specs = {
            self._out / part / f"{gap}-{seed}-{lr:g}": settings(
                self._sets / f"{gap}-{seed}", seed, [one for one in configurations if one.lr == lr], **changes
            )
            for seed, lr in places
        }
        with (
            watcher(self._console, [run for spec in specs.values() for run in spec.runs()]) as watching,
            suppress(NonFiniteError),  # if every run of a study diverges
        ):
            studies.carry_out_studies(specs, watching, self._jobs)
        folders = [directory for path, spec in specs.items() for _, directory in studies.runs_of(spec, path)]
        finished = [StoredRun.open(directory.path) for directory in folders if directory.is_finished]
        accuracies = {(configuration_of(run), run.seed): accuracy(run) for run in finished}
        return {one: [accuracies.get((one, seed), CHANCE) for seed in seeds] for one in configurations}


def configuration_of(run: StoredRun) -> Configuration:
    """Return the configuration of a finished run."""
    fields = run.spec.method.fields
    return Configuration(run.method, fields["rho"] if run.method in FLAT_OF else 0.0, run.spec.client.lr)


def accuracy(run: StoredRun) -> float:
    """Return the accuracy of a run: the mean over its last three evaluations."""
    return float(run.summary["test_accuracy"])


def best(scores: Scores, method: str, **fixed: float) -> Configuration:
    """Return the best configuration of a method, with `fixed` values; on a tie the smaller radius, then step size."""
    mine = [one for one in scores if one.method == method and fixed.items() <= one._asdict().items()]
    return min(mine, key=lambda one: (-scores[one], one.rho, one.lr))


def beyond(chosen: Configuration) -> list[Configuration]:
    """Return the configuration with one further value for each value of `chosen` at an end of the grid."""
    further = []
    for name, values in (("lr", STEP_SIZES), ("rho", RADII if chosen.method in FLAT_OF else ())):
        for end, inner in ((values[:1], values[1:2]), (values[-1:], values[-2:-1])):
            if end and getattr(chosen, name) == end[0]:
                further.append(chosen._replace(**{name: end[0] * end[0] / inner[0]}))
    return further


def choose(study: Study) -> dict[str, Scores]:
    """Return the scores of all configurations, by gap; an end that is the best is passed once, at both gaps."""
    scores = {gap: means(study.carry_out("choose", gap, CHOOSING_SEEDS, GRID)) for gap in GAPS}
    winners = [best(scores[gap], method) for gap in GAPS for method in (*BASES, *FLAT_OF)]
    if further := list(dict.fromkeys(more for one in winners for more in beyond(one))):
        for gap in GAPS:
            scores[gap] |= means(study.carry_out("choose-further", gap, CHOOSING_SEEDS, further))
    return scores


def means(accuracies: Mapping[Configuration, Sequence[float]]) -> Scores:
    """Return the mean accuracy of each configuration."""
    return {one: fmean(values) for one, values in accuracies.items()}


def carry_out(sets: Path, out: Path, jobs: Jobs) -> None:
    """Carry out every part of the plan: all choices before any comparison."""
    study = Study(sets, out, jobs)
    scores = choose(study)
    slow = [one for one in GRID if one.method in BASES]
    longer = {"rounds": 2 * ROUNDS}
    twice = means(study.carry_out("choose-twice", "few", CHOOSING_SEEDS, slow, **longer))
    for gap in GAPS:
        winners = {method: best(scores[gap], method) for method in (*BASES, *FLAT_OF)}
        study.carry_out("compare", gap, SEEDS, list(winners.values()), flatness=list(MEASURES))
        same = [best(scores[gap], flat, lr=winners[base].lr) for flat, base in FLAT_OF.items()]
        if others := [one for one in same if one not in winners.values()]:
            study.carry_out("same-step-size", gap, SEEDS, others)
    study.carry_out("twice", "few", SEEDS, [best(twice, base) for base in BASES], **longer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sets", type=Path, default=Path("sets"), help="folder written by sets.py; default %(default)s"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/gap-and-flatness"), help="default %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    arguments = parser.parse_args()
    with in_one_line():
        carry_out(arguments.sets, arguments.out, Jobs(arguments.jobs))

"""Carries out the study of this folder, from wherever it was stopped.

    python studies/gap-and-flatness/run.py --sets sets --out runs/gap-and-flatness --jobs 2
    python studies/gap-and-flatness/run.py --out runs/gap-and-flatness --count

Every run is an ordinary study below `--out`, such as `compare/few-0-FedSAM-0.1-0.12`; Ctrl-C saves them, and the same
command continues. Runs in the tables of --results, which collect.py wrote, are not trained again, so the study may go
on where their folders are missing. It says how many runs have ended and no accuracy, so that nobody looks at a
comparison before its end. `--count` prints the number of runs of each part.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from collect import HERE, Row, ended_runs, kept_rows, key_of, run_row
from plan import CLIENTS, COHORT, MODEL, PLAN, Configuration, Part, Plan, configuration_of

from fedflat.cli.console import Console, in_one_line
from fedflat.core.errors import InputError, NonFiniteError
from fedflat.engine.simulation import Round
from fedflat.experiments import studies
from fedflat.experiments.jobs import Jobs
from fedflat.experiments.runner import RunObserver
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.rounds.segments import commit_of_code

COEFFICIENTS: dict[str, dict[str, float]] = {
    "FedCM": {"alpha": 0.1}, "MoFedSAM": {"beta": 0.1}, "FedDyn": {"alpha": 0.1}, "FedSMOO": {"beta": 10.0}
}  # fmt: skip
DECAY = 0.99  # of the step size, by round
MEASURES = ("gradient-norm", "sharpness", {"name": "eigenvalues", "k": 1}, "trace", "lpf")


def settings(
    folder: Path, seed: int, configurations: Iterable[Configuration], rounds: int = PLAN.rounds, **changes: Any
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
        "model": MODEL,
        "client": {"lr": lr, "lr_decay": DECAY ** (PLAN.rounds / rounds), "epochs": None, "steps": 10,
                   "batch_size": 20},
        "methods": [method_table(one) for one in chosen],
        "seeds": [seed],
        "participation": COHORT,
        "rounds": rounds,
        "eval_every": 10,
        "last": 3,
        "flatness": [],
        "checkpoint_every": 50,
        "workers": 1,
        "device": "cpu",
        "executor": "compiled",
    }  # fmt: skip
    return StudySpec(**table | changes)


def method_table(one: Configuration) -> dict[str, Any]:
    """Return the table of a method in a study's settings."""
    radius = {"rho": one.rho} if one.method in PLAN.base_of else {}
    return {"name": one.method, **COEFFICIENTS.get(one.method, {}), **radius}


class Counted(RunObserver):
    """Says how many runs of a part are trained, without their accuracies."""

    def __init__(self, console: Console, part: Part) -> None:
        self._console, self._part, self._done = console, part, 0

    def run_started(self, spec: RunSpec, done: int) -> None:
        """Count a run that was trained before."""
        self._done += done == spec.rounds

    def round_ended(self, spec: RunSpec, round: Round) -> None:
        """Count and name a run after its last round."""
        if round.t + 1 == spec.rounds:
            self._say(spec, "is trained")

    def run_failed(self, spec: RunSpec, error: Exception) -> None:
        """Count and name a run that diverged."""
        self._say(spec, f"diverged: {error}")

    def _say(self, spec: RunSpec, what: str) -> None:
        self._done += 1
        number = f"{self._done} of {self._part.size}"
        self._console.say(f"{self._part.name}, {self._part.gap}: {number}, {spec.title}, lr {spec.client.lr:g}, {what}")


def carry_out(
    sets: Path, out: Path, jobs: Jobs, plan: Plan = PLAN, results: Path | None = None, **changes: Any
) -> None:
    """Carry out every part of the plan, one after another; what has ended is not trained again."""
    console = Console()
    rows = rows_of(out, results)
    while part := next_part(rows, plan):
        carry_out_part(console, sets, out, jobs, part, rows, **changes)
        if not part.has_ended(rows := rows_of(out, results)):
            raise InputError(f"{part.name}, {part.gap}: runs neither finished nor diverged; use the same command again")


def next_part(rows: Sequence[Row], plan: Plan) -> Part | None:
    """Return the first part that has not ended; None if all have."""
    return next((part for part in plan.parts(rows) if not part.has_ended(rows)), None)


def carry_out_part(
    console: Console, sets: Path, out: Path, jobs: Jobs, part: Part, rows: Sequence[Row], **changes: Any
) -> None:
    """Carry out the runs of one part that are not among the ended `rows`."""
    changes = {"flatness": list(MEASURES) if part.is_measured else []} | changes
    done = {(configuration_of(row), row["seed"]) for row in part.ended(rows)}
    specs = {
        out / part.name / f"{part.gap}-{seed}-{one.method}-{one.rho:g}-{one.lr:g}": settings(
            sets / f"{part.gap}-{seed}", seed, [one], part.rounds, **changes
        )
        for seed in part.seeds
        for one in part.configurations or ()
        if (one, seed) not in done
    }
    with suppress(NonFiniteError):  # if every run of a study diverges
        studies.carry_out_studies(specs, Counted(console, part), jobs)


def rows_of(out: Path, results: Path | None = None) -> list[Row]:
    """Return the runs that have ended: those below `out`, and others in the tables of `results`."""
    ended = [run_row(*one) for one in ended_runs(out)]
    return ended + ([] if results is None else kept_rows(results, "runs", {key_of(row) for row in ended}))


def counts(rows: Sequence[Row], plan: Plan = PLAN) -> list[str]:
    """Return a line for each part: how many of its runs have ended, and how many there are."""
    return [
        f"{part.name}, {part.gap}: {len(part.ended(rows))} of {'?' if part.size is None else part.size} runs have ended"
        for part in plan.parts(rows)
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sets", type=Path, default=Path("sets"), help="folder written by sets.py; default %(default)s"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/gap-and-flatness"), help="default %(default)s")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="tables of runs; default %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--count", action="store_true", help="print the number of runs of each part, and train nothing")
    arguments = parser.parse_args()
    with in_one_line():
        print(f"commit {commit_of_code() or 'unknown'}, runs in {arguments.out}", flush=True)
        print("\n".join(counts(rows_of(arguments.out, arguments.results))), flush=True)
        if not arguments.count:
            carry_out(arguments.sets, arguments.out, Jobs(arguments.jobs), results=arguments.results)

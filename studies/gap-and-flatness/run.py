"""Carries out the study of this folder, from wherever it was stopped.

    python studies/gap-and-flatness/run.py --sets sets --out runs/gap-and-flatness --jobs 2

All parts are ordinary studies below `--out`; Ctrl-C saves them, and the same command continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedflat.cli.console import Console, in_one_line
from fedflat.cli.execution import carry_out_study
from fedflat.experiments.jobs import Jobs
from fedflat.experiments.run_directory import StoredRun
from fedflat.experiments.spec import StudySpec
from fedflat.experiments.studies import stored_study

GAPS = ("few", "many")
STEP_SIZES = (0.03, 0.06, 0.12, 0.24)
RADII = (0.02, 0.1, 0.5)
BASES: tuple[dict[str, Any], ...] = (
    {"name": "FedAvg"},
    {"name": "FedCM", "alpha": 0.1},
    {"name": "FedDyn", "alpha": 0.1},
)
FLAT: tuple[dict[str, Any], ...] = (
    {"name": "FedSAM"}, {"name": "FedLESAM"}, {"name": "MoFedSAM", "beta": 0.1}, {"name": "FedSMOO", "beta": 10.0},
)  # fmt: skip
ROUNDS = 150
DECAY = 0.99  # of the step size, by round
CHOOSING_SEEDS = (1000, 1001, 1002)
SEEDS = tuple(range(20))
MEASURES = ("gradient-norm", "sharpness", {"name": "eigenvalues", "k": 1}, "trace", "lpf")


def settings(folder: Path, methods: Sequence[Mapping[str, Any]], **changes: Any) -> StudySpec:
    """Return the settings that all parts share, with the data in `folder`."""
    table: dict[str, Any] = {
        "data": {"name": "npz", "clients": 50},
        "data_dir": str(folder),
        "partition": {"name": "balanced-dirichlet", "alpha": 0.3},
        "model": {"name": "cnn"},
        "client": {"lr": 0.1, "lr_decay": DECAY, "epochs": None, "steps": 10, "batch_size": 20},
        "methods": list(methods),
        "participation": 10,
        "rounds": ROUNDS,
        "eval_every": 10,
        "last": 3,
        "flatness": [],
        "checkpoint_every": 50,
        "workers": 1,
    }
    return StudySpec(**table | changes)


def choices(sets: Path, gap: str) -> StudySpec:
    """Return the grid of a gap: every method with every step size, and the flat ones with every radius."""
    methods = [*BASES, *(method | {"rho": rho} for method in FLAT for rho in RADII)]
    return settings(sets / f"choose-{gap}", methods, seeds=list(CHOOSING_SEEDS), grid={"client.lr": list(STEP_SIZES)})


def best(runs: Sequence[StoredRun]) -> dict[str, dict[str, Any]]:
    """Return the best configuration of each method by mean accuracy over seeds.

    On a tie the smaller radius is better, then the smaller step size. Each configuration is {"method": the table of the
    method, "lr": the step size}. A configuration that diverged for a seed is left out.
    """
    found: dict[tuple[str, float, float], list[float]] = {}
    for run in runs:
        method = run.spec.method.fields
        key = run.method, float(method.get("rho", 0.0)), run.spec.client.lr
        found.setdefault(key, []).append(run.summary["test_accuracy"])
    means = {key: fmean(values) for key, values in found.items() if len(values) == len(CHOOSING_SEEDS)}
    winners: dict[str, dict[str, Any]] = {}
    for method in (*BASES, *FLAT):
        mine = [key for key in means if key[0] == method["name"]]
        _, rho, lr = min(mine, key=lambda key: (-means[key], key[1], key[2]))
        winners[method["name"]] = {"method": method | ({"rho": rho} if method in FLAT else {}), "lr": lr}
    return winners


def comparison(sets: Path, gap: str, winners: Mapping[str, Mapping[str, Any]], **changes: Any) -> StudySpec:
    """Return the comparison of the best configurations."""
    return settings(
        sets / f"compare-{gap}",
        [one["method"] for one in winners.values()],
        client_of={name: {"lr": one["lr"]} for name, one in winners.items()},
        **{"seeds": list(SEEDS), "flatness": list(MEASURES)} | changes,
    )


def carry_out(sets: Path, out: Path, jobs: Jobs) -> None:
    """Carry out every part of the plan: all choices before any comparison."""
    console, winners = Console(), {}
    for gap in GAPS:
        carry_out_study(console, choices(sets, gap), out / f"choose-{gap}", jobs)
        winners[gap] = best(stored_study(out / f"choose-{gap}")[1])
    for gap in GAPS:
        carry_out_study(console, comparison(sets, gap, winners[gap]), out / f"compare-{gap}", jobs)
    bases = {name: one for name, one in winners["few"].items() if name in {base["name"] for base in BASES}}
    twice = comparison(sets, "few", bases, seeds=list(range(10)), flatness=[], rounds=2 * ROUNDS)
    twice = twice.model_copy(update={"client": twice.client.model_copy(update={"lr_decay": DECAY**0.5})})
    carry_out_study(console, twice, out / "twice-few", jobs)
    for gap in GAPS:
        iid = comparison(sets, gap, winners[gap], seeds=list(range(5)), flatness=[], partition={"name": "iid"})
        carry_out_study(console, iid, out / f"iid-{gap}", jobs)


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

"""Carries out the study of this folder, from wherever it was stopped.

    python studies/flat-or-tuned/run.py --data-dir DATA --out runs/flat-or-tuned --jobs 2

Searches, comparisons and controls are ordinary searches and studies below `--out`; Ctrl-C saves them, and the same
command goes on. `kept.py restore` first gives `--out` what has finished on other machines. When all are finished,
`collect.py` puts their results beside this file.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedflat.cli.console import Console, in_one_line
from fedflat.cli.execution import carry_out_study, prepare_data
from fedflat.cli.progress import watcher
from fedflat.experiments import tuning
from fedflat.experiments.spec import StudySpec
from fedflat.experiments.tuning_spec import TuningSpec

HERE = Path(__file__).parent
SPLITS = ("alpha-0.1", "alpha-0")
ROUNDS = {"alpha-0": 1000}  # of the comparison, where it needs more than the search's last step
# What each split has beside `tune` and `tuned`: controls 2, 1 and 3, and the second searches.
CONTROLS = {"alpha-0.1": ("twice", "published", "tune-again", "tuned-again"), "alpha-0": ("same",)}
AGAIN = "-again"  # what the second searches lead to
PLAIN = ("FedAvg", "FedCM", "FedDyn")
# The flat methods that are their plain base where rho = 0, and the base's settings there, from the method's own.
WITHOUT_RHO: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "FedSAM": lambda own: {"name": "FedAvg"},
    "FedASAM": lambda own: {"name": "FedAvg"},
    "FedLESAM": lambda own: {"name": "FedAvg"},
    "MoFedSAM": lambda own: {"name": "FedCM", "alpha": own["beta"]},
    "FedSMOO": lambda own: {"name": "FedDyn", "alpha": 1 / own["beta"]},
    "FedLESAM_D": lambda own: {"name": "FedDyn", "alpha": 1 / own["beta"]},
}
MEASURES = ({"name": "eigenvalues", "k": 1}, "trace", "lpf")  # of every tuned final model


def search(split: str, data_dir: str, which: str = "") -> TuningSpec:
    """Return the search of a split, from its file; `which` is AGAIN for the second one there."""
    return TuningSpec.load(HERE / f"tune{which}-{split}.toml").model_copy(update={"data_dir": data_dir})


def as_published(split: str, data_dir: str) -> StudySpec:
    """Return control 1: the settings of the search's file, which are those of the papers with one step size."""
    table = tomllib.loads((HERE / f"tune-{split}.toml").read_text())
    return StudySpec(**{name: value for name, value in table.items() if name != "tune"}, data_dir=data_dir)


def comparison(split: str, winners: StudySpec, data_dir: str) -> StudySpec:
    """Return the study of the winners of a search, whose final models are measured."""
    rounds = ROUNDS.get(split, winners.rounds)
    return StudySpec(**winners.table() | {"rounds": rounds, "flatness": list(MEASURES), "data_dir": data_dir})


def twice_the_rounds(winners: StudySpec) -> StudySpec:
    """Return control 2: the tuned plain methods, with the gradients that SAM takes."""
    plain = [method for method in winners.methods if method.name in PLAIN]
    own = {name: client for name, client in winners.client_of.items() if name in PLAIN}
    return winners.model_copy(update={"methods": plain, "client_of": own, "rounds": 2 * winners.rounds, "flatness": []})


def same_settings(winners: StudySpec) -> dict[str, StudySpec]:
    """Return control 3: the plain base with the settings of each tuned flat method, by the first that has them."""
    found: dict[str, StudySpec] = {}
    for method in winners.methods:
        if method.name in WITHOUT_RHO:
            base = WITHOUT_RHO[method.name](method.fields)
            changes = {"methods": [base], "client_of": {base["name"]: winners.client_of[method.name]}, "flatness": []}
            spec = StudySpec(**winners.table() | changes)
            if spec not in found.values():
                found[method.name] = spec
    return found


def drift(data_dir: str) -> StudySpec:
    """Return FedGF at alpha = 0 in the setting of its paper, with two radii."""
    return StudySpec.load(HERE / "fedgf-drift.toml").model_copy(update={"data_dir": data_dir})


def carry_out(data_dir: str, out: Path, jobs: int) -> None:
    """Carry out every part of the plan: the splits one after another, and the drift of FedGF."""
    console = Console()
    prepare_data(console, search(SPLITS[0], data_dir))
    for split in SPLITS:
        winners = compare_tuned(console, split, data_dir, out, jobs)
        if "twice" in CONTROLS[split]:
            carry_out_study(console, twice_the_rounds(winners), out / f"twice-{split}", jobs)
        if "published" in CONTROLS[split]:
            carry_out_study(console, as_published(split, data_dir), out / f"published-{split}", jobs)
        if "same" in CONTROLS[split]:
            for method, spec in same_settings(winners).items():
                carry_out_study(console, spec, out / f"same-{split}-{method}", jobs)
        if "tune-again" in CONTROLS[split]:
            compare_tuned(console, split, data_dir, out, jobs, AGAIN)
    carry_out_study(console, drift(data_dir), out / "fedgf-drift", jobs)


def compare_tuned(console: Console, split: str, data_dir: str, out: Path, jobs: int, which: str = "") -> StudySpec:
    """Carry out a search and the comparison of its winners, with their flatness, and return the comparison."""
    spec, folder = search(split, data_dir, which), out / f"tune{which}-{split}"
    with watcher(console, tuning.planned_runs(spec, folder)) as watching:
        tuning.tune(spec, folder, watching, jobs)
    winners = comparison(split, StudySpec.load(folder / tuning.WINNERS), data_dir)
    carry_out_study(console, winners, out / f"tuned{which}-{split}", jobs)
    return winners


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="the folder with cifar10")
    parser.add_argument("--out", type=Path, default=Path("runs/flat-or-tuned"), help="default %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    arguments = parser.parse_args()
    with in_one_line():
        carry_out(arguments.data_dir, arguments.out, arguments.jobs)

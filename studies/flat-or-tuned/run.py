"""Carries out the study of this folder, from wherever it was stopped.

    python studies/flat-or-tuned/run.py --data-dir DATA --out runs/flat-or-tuned --jobs 2

Searches, comparisons and controls are ordinary searches and studies below `--out`; Ctrl-C saves them, and the same
command goes on. `kept.py restore` first gives `--out` what has finished on other machines. When all are finished,
`collect.py` puts their results beside this file.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

from fedflat.cli.console import Console
from fedflat.cli.ending import in_one_line
from fedflat.cli.execution import carry_out_study, prepare_data
from fedflat.cli.progress import watcher
from fedflat.experiments import tuning
from fedflat.experiments.spec import StudySpec
from fedflat.experiments.tuning_spec import TuningSpec

HERE = Path(__file__).parent
SPLITS = ("alpha-0.1", "alpha-0")
ROUNDS = {"alpha-0": 1000}  # of the comparison, where it needs more than the search's last step
# What each split has beside `tune` and `tuned`: control 2, control 1, and the second search of FedGF.
CONTROLS = {"alpha-0.1": ("twice", "published", "tune-again", "tuned-again"), "alpha-0": ("twice",)}
AGAIN = "-again"  # what the second search of FedGF leads to
PLAIN = ("FedAvg", "FedCM", "FedDyn")
MEASURES = ({"name": "eigenvalues", "k": 1}, "trace", "lpf")  # of every tuned final model


def search(split: str, data_dir: str, which: str = "") -> TuningSpec:
    """The search of a split, from its file; `which` is AGAIN for the second one there."""
    return TuningSpec.load(HERE / f"tune{which}-{split}.toml").model_copy(update={"data_dir": data_dir})


def as_published(split: str, data_dir: str) -> StudySpec:
    """Control 1: the settings of the search's file, which are those of the papers with one step size."""
    table = tomllib.loads((HERE / f"tune-{split}.toml").read_text())
    return StudySpec(**{name: value for name, value in table.items() if name != "tune"}, data_dir=data_dir)


def comparison(split: str, winners: StudySpec, data_dir: str) -> StudySpec:
    """The study of the winners of a search, whose final models are measured."""
    rounds = ROUNDS.get(split, winners.rounds)
    return StudySpec(**winners.table() | {"rounds": rounds, "flatness": list(MEASURES), "data_dir": data_dir})


def twice_the_rounds(winners: StudySpec) -> StudySpec:
    """Control 2: the tuned plain methods, with the gradients that SAM takes."""
    plain = [method for method in winners.methods if method.name in PLAIN]
    own = {name: client for name, client in winners.client_of.items() if name in PLAIN}
    return winners.model_copy(update={"methods": plain, "client_of": own, "rounds": 2 * winners.rounds, "flatness": []})


def drift(data_dir: str) -> StudySpec:
    """FedGF at alpha = 0 in the setting of its paper, with two radii."""
    return StudySpec.load(HERE / "fedgf-drift.toml").model_copy(update={"data_dir": data_dir})


def carry_out(data_dir: str, out: Path, jobs: int) -> None:
    """Every part of the plan: the splits one after another, and the drift of FedGF."""
    console = Console()
    prepare_data(console, search(SPLITS[0], data_dir))
    for split in SPLITS:
        winners = compare_tuned(console, split, data_dir, out, jobs)
        if "twice" in CONTROLS[split]:
            carry_out_study(console, twice_the_rounds(winners), out / f"twice-{split}", jobs)
        if "published" in CONTROLS[split]:
            carry_out_study(console, as_published(split, data_dir), out / f"published-{split}", jobs)
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

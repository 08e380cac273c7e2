"""Reads the finished runs of the study of this folder and puts their numbers beside this file, in results/.

    python studies/flat-or-tuned/collect.py --runs runs/flat-or-tuned

What is not finished is named, and left out. The same runs always give the same bytes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedflat.cli.console import in_one_line
from fedflat.core.errors import InputError
from fedflat.experiments import tuning
from fedflat.experiments.ledger import LEDGER, Tried
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.experiments.spec import StudySpec
from fedflat.experiments.studies import run_directory
from fedflat.experiments.tuning_spec import Configuration, TuningSpec
from fedflat.files import make_folder, read_json, write_atomically

HERE = Path(__file__).parent
SPLITS = ("alpha-0.1", "alpha-0")
# What each split has beside `tune` and `tuned`: controls 2, 1 and 3, and the second searches.
CONTROLS = {"alpha-0.1": ("twice", "published", "tune-again", "tuned-again"), "alpha-0": ("same",)}
SEARCHES = ("tune", "tune-again")  # one of each split
PARTS = ("tuned", "twice", "published", "tuned-again", "same")  # studies, of each split one; of `same` several
EVERYWHERE = ("tune", "tuned")
MEASURED = ("tuned", "tuned-again")
DRIFT, DRIFT_SPLIT = "fedgf-drift", "alpha-0"
MEASURES = ("lambda_max", "trace", "lpf")
RUN = [("part", pa.string()), ("split", pa.string()), ("method", pa.string()), ("seed", pa.int64())]
SCHEMAS = {
    "runs": pa.schema([
        *RUN, ("rounds", pa.int64()),
        ("accuracy", pa.float64()),  # mean of the last evaluations, in [0, 1]; none in a search
        ("accuracy_of_final_model", pa.float64()),
        ("train_accuracy", pa.float64()), ("train_loss", pa.float64()),  # of the final model, on all training samples
        ("gradients", pa.float64()),  # minibatch gradients
        ("seconds", pa.float64()),  # of all rounds, by the clock
        ("client.lr", pa.float64()),
        ("hyper_parameters", pa.string()),  # of the method, JSON
        *((name, pa.float64()) for measure in MEASURES for name in (measure, f"{measure}_error")),
        ("mean_c", pa.float64()),  # FedGF's interpolation, over all rounds
        ("segments", pa.int64()),  # how often it was begun, resumed or extended
    ]),
    "curves": pa.schema([*RUN, ("round", pa.int64()), ("test_accuracy", pa.float64())]),
    "tuning": pa.schema([
        ("part", pa.string()), ("split", pa.string()), ("method", pa.string()), ("configuration", pa.int64()),
        ("settings", pa.string()),  # JSON, by key of a run's configuration
        ("rounds", pa.int64()),  # of the step of the search
        ("seed", pa.int64()),
        ("round", pa.int64()), ("validation_accuracy", pa.float64()),  # none if it diverged
    ]),
    "drift": pa.schema([
        ("rho", pa.float64()), ("threshold", pa.float64()), ("round", pa.int64()), ("drift", pa.float64()),
        ("c", pa.float64()),
    ]),
    "missing": pa.schema([
        ("part", pa.string()), ("split", pa.string()), ("what", pa.string()),
    ]),
}  # fmt: skip
Row = dict[str, Any]


@dataclass
class Collected:
    """The rows of the tables."""

    runs: list[Row] = field(default_factory=list)
    curves: list[Row] = field(default_factory=list)
    tuning: list[Row] = field(default_factory=list)
    drift: list[Row] = field(default_factory=list)
    missing: list[Row] = field(default_factory=list)

    def miss(self, part: str, split: str, *what: str) -> None:
        """Note what is not finished of a part."""
        self.missing += [{"part": part, "split": split, "what": one} for one in what]

    def write(self, folder: Path) -> None:
        """Write the tables, one file each."""
        make_folder(folder)
        for name, schema in SCHEMAS.items():
            table = pa.Table.from_pylist(getattr(self, name), schema=schema)
            write_atomically(folder / f"{name}.parquet", partial(pq.write_table, table))


def collected(runs: Path) -> Collected:
    """Return what is finished below the folder `runs`. Raises InputError if it is nothing, or if a file is damaged."""
    found = Collected()
    for part in (*SEARCHES, *PARTS):
        add = add_search if part in SEARCHES else add_study
        for split in SPLITS:
            if part in EVERYWHERE or part in CONTROLS[split]:
                for folder in folders_of(runs, part, split):
                    add(found, part, split, folder)
    add_study(found, "drift", DRIFT_SPLIT, runs / DRIFT)
    found.drift += [row for run in finished(planned(runs / DRIFT)) for row in drift_rows(run)]
    if not found.runs:
        raise InputError(f"--runs {runs} holds no finished run of the study; `run.py --out {runs}` carries it out")
    return found


def folders_of(runs: Path, part: str, split: str) -> list[Path]:
    """Return the folders of a part of a split: one, or of `same` one for each setting of a plain method."""
    several = sorted(runs.glob(f"{part}-{split}-*")) if part == "same" else []
    return several or [runs / f"{part}-{split}"]


def add_search(found: Collected, part: str, split: str, folder: Path) -> None:
    """Add the steps of a search that are complete, and its trials."""
    if not (folder / tuning.SETTINGS).exists():
        found.miss(part, split, "not begun")
        return
    spec = TuningSpec.load(folder / tuning.SETTINGS)
    ledger = folder / LEDGER
    tried = [Tried(**entry) for entry in read_json(ledger)] if ledger.exists() else []
    left = [rounds for rounds in spec.tune.rounds if rounds not in {one.rounds for one in tried}]
    found.miss(part, split, *(f"the step of {rounds} rounds is not complete" for rounds in left))
    found.tuning += [{"part": part} | row for one in tried for row in tuning_rows(split, spec, one)]
    trials = [(path.name, RunDirectory(path)) for path in sorted(folder.glob("trials/*"))]
    rows = [run_row(part, split, run) for run in finished(trials)]
    # By their settings and not by the names of their folders, which are digests.
    found.runs += sorted(rows, key=lambda row: (row["method"], row["seed"], row["client.lr"], row["hyper_parameters"]))


def add_study(found: Collected, part: str, split: str, folder: Path) -> None:
    """Add the finished runs of a study, and their evaluations."""
    every = planned(folder)
    if not every:
        found.miss(part, split, "not begun")
        return
    left = [title for title, directory in every if not directory.is_finished]
    if left:
        found.miss(part, split, f"{len(left)} of {len(every)} runs have not finished, or diverged: {', '.join(left)}")
    runs = finished(every)
    found.runs += [run_row(part, split, run) for run in runs]
    found.curves += [row for run in runs for row in curve_rows(part, split, run)]
    bare = [run for run in runs if part in MEASURED and not set(MEASURES) <= set(run.flatness)]
    if bare:
        found.miss(part, split, f"{len(bare)} of {len(runs)} finished runs lack measures of flatness")


def planned(study: Path) -> list[tuple[str, RunDirectory]]:
    """Return the title and the folder of every run of a study; none if it has not begun."""
    file = study / "study.toml"
    return [(spec.title, run_directory(spec, study)) for spec in StudySpec.load(file).runs()] if file.exists() else []


def finished(runs: Sequence[tuple[str, RunDirectory]]) -> list[StoredRun]:
    """Return the runs that have finished."""
    return [StoredRun(directory) for _, directory in runs if directory.is_finished]


def run_row(part: str, split: str, run: StoredRun) -> Row:
    """Return the numbers of one finished run."""
    spec, summary = run.spec, run.summary
    row = identity(part, split, run) | {
        "rounds": int(summary["rounds"]),
        "accuracy": summary.get("test_accuracy"),
        "accuracy_of_final_model": summary.get("test_accuracy_last"),
        "train_accuracy": summary["client_accuracy_mean"],  # clients have equally many samples
        "train_loss": summary["train_loss"],
        "gradients": summary["gradients"],
        "seconds": summary["seconds"],
        "client.lr": spec.client.lr,
        "hyper_parameters": as_json(spec.method.fields),
        "segments": len(read_json(run.directory.path / "env.json")),
    }
    if "c" in run.metrics.column_names:
        row["mean_c"] = fmean(run.metrics["c"].to_pylist())
    for measure in MEASURES:
        if measure in run.flatness:
            row |= {measure: run.flatness[measure].value, f"{measure}_error": run.flatness[measure].error}
    return row


def curve_rows(part: str, split: str, run: StoredRun) -> list[Row]:
    """Return the test accuracy at every evaluation of one run; rounds are counted from 1."""
    return [
        identity(part, split, run) | {"round": int(row["t"]) + 1, "test_accuracy": row["test_accuracy"]}
        for row in run.metrics.to_pylist()
        if row.get("test_accuracy") is not None
    ]


def tuning_rows(split: str, spec: TuningSpec, one: Tried) -> list[Row]:
    """Return the validation accuracies of one configuration in one step.

    A seed that diverged has one row without any.
    """
    method = spec.methods[one.method]
    run = spec.trial(Configuration(method, one.number, one.values), spec.tune.seeds[0], one.rounds)
    sections = {"client": vars(run.client), "method": run.method.fields}
    parts = {key: key.partition(".") for key in spec.box_of(method)}
    settings = {key: sections[section][name] for key, (section, _, name) in parts.items()}
    shared = {
        "split": split, "method": method.label, "configuration": one.number, "settings": as_json(settings),
        "rounds": one.rounds,
    }  # fmt: skip
    curves = one.curves | {seed: [(None, None)] for seed in one.diverged}
    return [
        shared | {"seed": seed, "round": t, "validation_accuracy": accuracy}
        for seed, curve in sorted(curves.items())
        for t, accuracy in curve
    ]


def drift_rows(run: StoredRun) -> list[Row]:
    """Return the mean drift of the clients and the interpolation c in every round of FedGF."""
    own = run.spec.method.fields
    shared = {"rho": own["rho"], "threshold": own["threshold"]}
    return [
        shared | {"round": int(row["t"]) + 1, "drift": row["drift"], "c": row["c"]} for row in run.metrics.to_pylist()
    ]


def identity(part: str, split: str, run: StoredRun) -> Row:
    """Return what tells a run from the others."""
    return {"part": part, "split": split, "method": run.method, "seed": run.seed}


def as_json(values: dict[str, Any]) -> str:
    """Return values by key, with sorted keys."""
    return json.dumps(values, sort_keys=True)


def collect(runs: Path, results: Path) -> None:
    """Write the tables, and say what they hold and what is missing."""
    found = collected(runs)
    found.write(results)
    for name in SCHEMAS:
        print(f"{results / name}.parquet: {len(getattr(found, name)):,} rows")
    for line in found.missing:
        print(f"missing: {line['part']}, {line['split']}: {line['what']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="the folder that run.py wrote (its --out)")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="default %(default)s")
    arguments = parser.parse_args()
    with in_one_line():
        collect(arguments.runs, arguments.results)

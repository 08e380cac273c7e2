"""Reads the runs of this study that have ended and puts their numbers beside this file, in results/.

    python studies/gap-and-flatness/collect.py --runs runs/gap-and-flatness

It may be called at any time, also while runs go on: those that have neither finished nor diverged are left out. The
same runs always give the same bytes. Rows of runs that are no longer below --runs stay in the tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fedflat.cli.console import in_one_line
from fedflat.core.errors import InputError, NonFiniteError
from fedflat.experiments.run_directory import RunDirectory, StoredRun
from fedflat.experiments.spec import RunSpec
from fedflat.experiments.studies import load_study, runs_of
from fedflat.files import make_folder, read_json, write_atomically

HERE = Path(__file__).parent
MEASURES = ("gradient_norm", "sharpness", "lambda_max", "trace", "lpf", "lpf_rise")
ERRORS = ("lambda_max", "trace", "lpf", "lpf_rise")  # the measures that are estimates on these images
IDENTITY = [
    ("part", pa.string()), ("gap", pa.string()), ("method", pa.string()), ("rho", pa.float64()), ("lr", pa.float64()),
    ("rounds", pa.int64()), ("seed", pa.int64()),
]  # fmt: skip
SCHEMAS = {
    "runs": pa.schema([
        *IDENTITY, ("diverged", pa.bool_()),  # then there are no numbers
        ("accuracy", pa.float64()),  # in [0, 1], mean of the last three evaluations; of `choose` on images set aside
        ("accuracy_of_final_model", pa.float64()),  # on the same images
        ("train_accuracy", pa.float64()), ("train_loss", pa.float64()),  # of the final model, on all clients' images
        *((name, pa.float64()) for name in MEASURES),  # on 2,000 training images
        *((f"{name}_error", pa.float64()) for name in ERRORS),
        ("drift", pa.float64()),  # mean over all rounds
        ("local_steps", pa.int64()), ("gradients", pa.float64()),  # of all clients in all rounds
        ("seconds", pa.float64()),  # of all rounds, by the clock
        ("segments", pa.int64()),  # how often it was begun or resumed
        ("commit", pa.string()), ("versions", pa.string()),  # of all segments; versions as JSON
    ]),
    "curves": pa.schema([
        *IDENTITY, ("round", pa.int64()), ("test_accuracy", pa.float64()), ("test_loss", pa.float64()),
        ("train_loss", pa.float64()), ("drift", pa.float64()),  # of the round's clients
    ]),
}  # fmt: skip
Row = dict[str, Any]
Ended = tuple[Row, RunDirectory]  # what tells a run from the others, and its folder


def ended_runs(runs: Path) -> list[Ended]:
    """Return the runs below `runs` that have finished or diverged, in order of what tells them from each other."""
    return sorted(_ended(runs), key=lambda one: list(one[0].values()))


def _ended(runs: Path) -> Iterator[Ended]:
    for file in runs.glob("*/*/study.toml"):
        for spec, directory in runs_of(load_study(file.parent), file.parent):
            if directory.is_finished or has_diverged(directory):
                yield identity(file.parts[-3], file.parts[-2].partition("-")[0], spec), directory


def has_diverged(directory: RunDirectory) -> bool:
    """Tell whether the last attempt to carry out the run ended with numbers that are not finite."""
    return (directory.failure or "").startswith(NonFiniteError.__name__)


def identity(part: str, gap: str, spec: RunSpec) -> Row:
    """Return what tells a run from the others."""
    return {
        "part": part, "gap": gap, "method": spec.method.label, "rho": spec.method.fields.get("rho", 0.0),
        "lr": spec.client.lr, "rounds": spec.rounds, "seed": spec.seed,
    }  # fmt: skip


def run_row(one: Row, directory: RunDirectory) -> Row:
    """Return the numbers of one run."""
    if not directory.is_finished:
        return one | {"diverged": True} | origin(directory)
    run = StoredRun(directory)
    summary, rounds = run.summary, run.metrics
    row = one | {
        "diverged": False,
        "accuracy": summary["test_accuracy"],
        "accuracy_of_final_model": summary["test_accuracy_last"],
        "train_accuracy": summary["client_accuracy_mean"],  # clients have equally many images
        "train_loss": summary["train_loss"],
        "drift": fmean(rounds["drift"].to_pylist()),
        "local_steps": int(sum(rounds["clients"].to_pylist())) * run.spec.client.steps,
        "gradients": summary["gradients"],
        "seconds": summary["seconds"],
    }
    found = {name: run.flatness[name] for name in MEASURES if name in run.flatness}
    errors = {f"{name}_error": one.error for name, one in found.items() if name in ERRORS}
    return row | {name: one.value for name, one in found.items()} | errors | origin(directory)


def origin(directory: RunDirectory) -> Row:
    """Return the commits and versions that computed the rounds of a run."""
    segments = read_json(directory.path / "env.json")
    every = [json.dumps(segment["versions"], sort_keys=True) for segment in segments]
    commits = [segment["commit"] or "unknown" for segment in segments]
    return {
        "segments": len(segments), "commit": ", ".join(dict.fromkeys(commits)),
        "versions": ", ".join(dict.fromkeys(every)),
    }  # fmt: skip


def curve_rows(one: Row, directory: RunDirectory) -> list[Row]:
    """Return the evaluated rounds of a finished run; rounds are counted from 1."""
    names = ("test_accuracy", "test_loss", "train_loss", "drift")
    return [
        one | {"round": int(row["t"]) + 1} | {name: row[name] for name in names}
        for row in StoredRun(directory).metrics.to_pylist()
        if row["test_accuracy"] is not None
    ]


def kept_rows(results: Path, name: str, newer: Collection[tuple[Any, ...]] = ()) -> list[Row]:
    """Return the rows of a table that was written before, without those of the `newer` runs."""
    file = results / f"{name}.parquet"
    rows: list[Row] = pq.read_table(file).to_pylist() if file.exists() else []
    return [row for row in rows if key_of(row) not in newer]


def key_of(row: Row) -> tuple[Any, ...]:
    """Return what tells the run of a row from the others."""
    return tuple(row[name] for name, _ in IDENTITY)


def collect(runs: Path, results: Path) -> None:
    """Write the tables, and say what they hold. Raises InputError if no run has ended, or if a file is damaged.

    Rows of runs that are not below `runs`, such as those of another machine, stay.
    """
    ended = ended_runs(runs)
    if not ended:
        raise InputError(f"--runs {runs} holds no finished run of the study; `run.py --out {runs}` carries it out")
    newer = {key_of(one) for one, _ in ended}
    tables = {
        "runs": [run_row(*one) for one in ended],
        "curves": [row for one in ended if one[1].is_finished for row in curve_rows(*one)],
    }
    make_folder(results)
    for name, rows in tables.items():
        every = sorted([*rows, *kept_rows(results, name, newer)], key=lambda row: (key_of(row), row.get("round", 0)))
        table = pa.Table.from_pylist(every, schema=SCHEMAS[name])
        write_atomically(results / f"{name}.parquet", partial(pq.write_table, table))
        print(f"{results / name}.parquet: {len(every):,} rows")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="the folder that run.py wrote (its --out)")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="default %(default)s")
    arguments = parser.parse_args()
    with in_one_line():
        collect(arguments.runs, arguments.results)

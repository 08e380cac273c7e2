"""What attackers do to every method, and guards about it: `python -m benchmarks.attacks`, into docs/attacks.csv.

The cells of the recipes ours/attacks and ours/inflated-claims, and besides the recipes' methods all others under the
sign flip and without attackers. A run takes two seconds or three on one core. Rows that are there are kept.
"""

from __future__ import annotations

import csv
import os
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from fedflat.core.errors import InputError, NonFiniteError
from fedflat.experiments.config_errors import validated
from fedflat.experiments.recipe import find_recipe
from fedflat.experiments.spec import RunSpec
from fedflat.methods import all_methods

FILE = Path(__file__).parent.parent / "docs" / "attacks.csv"
FEW = ("FedAvg", "FedSAM", "Scaffold", "FedSMOO")  # they come first
EVERY_METHOD = ("none", "sign-flip")  # the attacks under which all methods are tried
FIELDS = {"SWA": {"cycle": 1}}  # its default of 10 rounds is for longer runs


@dataclass(frozen=True)
class Row:
    """One run, and the mean of its last five test accuracies, or what has ended it before."""

    recipe: str
    method: str
    attack: str
    share: int  # of attackers, percent
    guard: str
    seed: int
    accuracy: float | None = None  # percent
    ended: str = ""  # "diverged", or "refused": all clients of a round were

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from other rows, as text."""
        return tuple(str(value) for name, value in asdict(self).items() if name not in ("accuracy", "ended"))


def read(file: Path | None = None) -> list[Row]:
    """Return the rows that were measured."""
    with (file or FILE).open(newline="") as text:
        return [
            Row(one["recipe"], one["method"], one["attack"], int(one["share"]), one["guard"], int(one["seed"]),
                float(one["accuracy"]) if one["accuracy"] else None, one["ended"])
            for one in csv.DictReader(text)
        ]  # fmt: skip


def planned(seeds: tuple[int, ...]) -> Iterator[tuple[Row, RunSpec]]:
    """Yield every run, with the row that it will fill."""
    for cell in find_recipe("ours/attacks").cells():
        attack, share, guard = cell.options
        own = {run.method.name: run for run in cell.study().runs()}
        others = [name for name, cls in all_methods().items() if cls.training == "federated" and name not in own]
        for seed in seeds:
            for name, run in own.items():
                yield Row("attacks", name, attack, int(share), guard, seed), with_seed(run, seed)
        for name in others if attack in EVERY_METHOD else ():
            run = with_method(own["FedAvg"], name)
            yield Row("attacks", name, attack, int(share), guard, 0), run
    for cell in find_recipe("ours/inflated-claims").cells():
        share, guard = cell.options
        for seed in seeds:
            for run in cell.study().runs():
                yield Row("inflated-claims", run.method.name, "claims", int(share), guard, seed), with_seed(run, seed)


def with_seed(run: RunSpec, seed: int) -> RunSpec:
    """Return the run with another seed, on one thread."""
    return validated(RunSpec, run.table() | {"seed": seed, "workers": 1})


def with_method(run: RunSpec, name: str) -> RunSpec:
    """Return the run with the method `name` at its defaults."""
    return validated(RunSpec, run.table() | {"method": {"name": name} | FIELDS.get(name, {}), "workers": 1})


def measured(task: tuple[Row, str]) -> Row:
    """Return the row with the accuracy of its run, which comes as TOML."""
    row, spec = task[0], validated(RunSpec, tomllib.loads(task[1]))
    try:
        with spec.build() as sim:
            accuracy = 100 * sim.run().summary["test_accuracy"]
    except (NonFiniteError, InputError) as error:
        print(f"{row.key}: {error}", file=sys.stderr)
        return replace(row, ended="diverged" if isinstance(error, NonFiniteError) else "refused")
    return replace(row, accuracy=round(accuracy, 2))


def main() -> None:
    """Measure what is missing: `python -m benchmarks.attacks [SEEDS [JOBS]]`, by default one and two."""
    os.environ["OMP_NUM_THREADS"] = "1"
    seeds, jobs = ([int(word) for word in sys.argv[1:]] + [1, 2][len(sys.argv) - 1 :])[:2]
    rows = {row.key: row for row in read()} if FILE.exists() else {}
    missing = [(row, spec.to_toml()) for row, spec in planned(tuple(range(seeds))) if row.key not in rows]
    missing.sort(key=lambda task: (task[0].method not in FEW, task[0].share % 20))
    with ProcessPoolExecutor(jobs) as pool:
        for done, row in enumerate(pool.map(measured, missing), start=1):
            rows[row.key] = row
            if done % 10 == 0 or done == len(missing):
                write(list(rows.values()))
                print(f"{done} of {len(missing)}", flush=True)


def write(rows: list[Row]) -> None:
    """Write all rows in the order of their keys."""
    with FILE.open("w", newline="") as text:
        table = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in sorted(rows, key=lambda row: row.key))


if __name__ == "__main__":
    main()

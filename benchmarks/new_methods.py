"""New methods beside their nearest relatives, in the setting of examples/digits.toml.

    python -m benchmarks.new_methods        # writes docs/new_methods.json, of which docs/methods.md has the tables

The rows are in new_methods.toml. A run takes some seconds on one core, all of them some minutes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fedflat.core.errors import NonFiniteError
from fedflat.experiments.config_errors import validated
from fedflat.experiments.settings_tables import merged
from fedflat.experiments.spec import RunSpec, StudySpec
from fedflat.rounds.segments import commit_of_code

ROOT = Path(__file__).parents[1]
ROWS, SETTING = ROOT / "benchmarks" / "new_methods.toml", ROOT / "examples" / "digits.toml"
FILE = ROOT / "docs" / "new_methods.json"
JOBS = 2  # runs at a time; no result depends on it


@dataclass(frozen=True)
class Row:
    """One line of the tables: a method with settings, and the labels of the lines that it is compared with."""

    label: str
    settings: dict[str, Any]  # of a run, in the place of the common ones
    beside: tuple[str, ...] = ()
    source: str = ""  # where values that are no defaults come from


@dataclass(frozen=True)
class Result:
    """What the tables need of a run; nothing of one that diverged."""

    label: str
    seed: int
    test_accuracy: float | None = None  # of the server's model, mean of the last evaluations, 0 to 1
    test_samples: int | None = None
    own_accuracy: float | None = None  # mean over clients, each on samples of its own that it did not train on
    gradients: float | None = None  # minibatch gradients of all clients in all rounds
    numbers: float | None = None  # sent by and to all clients in all rounds


def rows() -> list[Row]:
    """Return the rows of the file."""
    found = []
    for table in tomllib.loads(ROWS.read_text())["row"]:
        label, beside, source = table.pop("label"), tuple(table.pop("beside", ())), table.pop("source", "")
        found.append(Row(label, table, beside, source))
    return found


def planned() -> Iterator[tuple[Row, RunSpec]]:
    """Yield every run with its row. Raises InputError for an invalid one."""
    setting = StudySpec.read(SETTING)
    common = {key: value for key, value in setting.items() if key in RunSpec.model_fields} | {"flatness": []}
    for row in rows():
        for seed in setting["seeds"]:
            yield row, validated(RunSpec, merged(RunSpec, common, row.settings | {"seed": seed}))


def measured(label: str, toml: str) -> Result:
    """Carry out a run, given as TOML, which other processes can read."""
    spec = validated(RunSpec, tomllib.loads(toml))
    result = Result(label, spec.seed)
    try:
        with spec.build() as sim:
            found = sim.run().summary
    except NonFiniteError:
        return result
    sent, of_number = found["bytes_down"] + found["bytes_up"], found["vector_bytes"] / found["parameters"]
    return replace(
        result, test_accuracy=found["test_accuracy"], test_samples=found["test_samples"],
        own_accuracy=found.get("validation_accuracy_mean"), gradients=found["gradients"], numbers=sent / of_number,
    )  # fmt: skip


def read(content: dict[str, Any]) -> list[Result]:
    """Return the results of a file's content."""
    return [Result(**one) for one in content["results"]]


def main() -> None:
    """Carry out every run, and write the file."""
    commit, results = commit_of_code(), []
    with ProcessPoolExecutor(JOBS, get_context("spawn")) as pool:
        for result in pool.map(measured, *zip(*((row.label, spec.to_toml()) for row, spec in planned()), strict=True)):
            results.append(result)
            print(result, flush=True)
    content = {
        "command": "python -m benchmarks.new_methods",
        "commit": commit,
        "results": [*map(asdict, results)],
    }
    FILE.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What compressed messages do to accuracy and flatness: `python -m benchmarks.compression`, into docs/compression.json.

The runs of the recipe ours/compression, on one thread each; those with full messages are also measured along the way,
so that a compressed run can be compared with them at its own training loss. All runs take some ten minutes on one core.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedflat.core.errors import NonFiniteError
from fedflat.engine.simulation import Simulation
from fedflat.experiments.config_errors import validated
from fedflat.experiments.recipe import find_recipe
from fedflat.experiments.spec import RunSpec
from fedflat.rounds.segments import commit_of_code

FILE = Path(__file__).parents[1] / "docs" / "compression.json"
RECIPE, FULL = "ours/compression", "full"
EVERY = 5  # rounds between measurements along the way


@dataclass(frozen=True)
class Measured:
    """The training loss and the measures of one model."""

    t: int  # rounds
    train_loss: float
    values: dict[str, float]  # by the measure's name
    errors: dict[str, float | None]  # half of a 95 % interval or a residual; none of a measure without error


@dataclass(frozen=True)
class Result:
    """One run; of one that diverged there is no end."""

    message: str  # the cell of the recipe
    method: str
    seed: int
    message_bytes: int  # sent by a client in a round
    test_accuracy: float | None = None  # mean of the last evaluations, 0 to 1
    test_samples: int | None = None
    end: Measured | None = None
    way: tuple[Measured, ...] = ()  # of a run with full messages, from its first rounds on


def planned() -> Iterator[tuple[str, RunSpec]]:
    """Yield every run with the name of its cell."""
    for cell in find_recipe(RECIPE).cells():
        for run in cell.study().runs():
            yield cell.name, validated(RunSpec, run.table() | {"workers": 1})


def carried_out(message: str, spec: RunSpec) -> Result:
    """Carry out a run."""
    with spec.build() as sim:
        measures, way = [one.object for one in spec.flatness], list[Measured]()
        result = Result(message, spec.method.label, spec.seed, sim.upload_bytes)
        try:
            for _ in sim:
                if message == FULL and sim.t % EVERY == 0:
                    way.append(measured(sim, measures))
        except NonFiniteError:
            return result
        found = sim.result().summary
        return replace(result, test_accuracy=found["test_accuracy"], test_samples=int(found["test_samples"]),
                       end=measured(sim, measures), way=tuple(way))  # fmt: skip


def measured(sim: Simulation, measures: list[Any]) -> Measured:
    """Measure the model after the rounds so far."""
    result = sim.result(measures)
    found = result.flatness.items()
    return Measured(sim.t, result.summary["train_loss"], {name: one.value for name, one in found},
                    {name: one.error for name, one in found})  # fmt: skip


def read(content: dict[str, Any]) -> list[Result]:
    """Return the results of a file's content."""
    return [_result(**one) for one in content["results"]]


def _result(end: dict[str, Any] | None, way: list[dict[str, Any]], **facts: Any) -> Result:
    return Result(**facts, end=end and Measured(**end), way=tuple(Measured(**one) for one in way))


def main() -> None:
    """Carry out every run, and write the file."""
    commit, results = commit_of_code(), []
    for message, spec in planned():
        results.append(carried_out(message, validated(RunSpec, tomllib.loads(spec.to_toml()))))
        print(message, spec.title, results[-1].test_accuracy, flush=True)
    content = {"command": "python -m benchmarks.compression", "commit": commit, "results": [*map(asdict, results)]}
    FILE.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

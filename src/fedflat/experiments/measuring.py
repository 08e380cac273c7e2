"""Takes measures of finished or stopped runs: of the model, its clients, and the next round."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..core.errors import InputError
from ..core.progress import Progress
from ..engine.simulation import Simulation
from ..metrics.flatness import LIGHT, Finding, Flatness, Measure, check_measures, check_names
from .config_errors import validated
from .run_directory import RunDirectory
from .schema import Named, Section
from .spec import MEASURE
from .studies import load_study, run_directory


class MeasureList(Section):
    """Measures as a user gives them: names, or tables with a name and settings."""

    measures: list[Annotated[Named, MEASURE]] = Field(default=list(LIGHT), validate_default=True)


def build_measures(measures: Sequence[object]) -> list[Measure]:
    """Build measures from names and tables; `LIGHT` if there are none. Raises InputError that names a wrong one."""
    section = validated(MeasureList, {"measures": list(measures)} if measures else {})
    return [measure.object for measure in section.measures]


def run_directories(paths: Sequence[Path]) -> list[RunDirectory]:
    """Find the runs at `paths`, and all runs with a checkpoint of the studies there. Raises InputError."""
    found: list[RunDirectory] = []
    for path in paths:
        if (path / "study.toml").exists():
            directories = [run_directory(spec, path) for spec in load_study(path).runs()]
            of_path = [directory for directory in directories if directory.checkpoint]
        else:
            of_path = [RunDirectory(path)]
            of_path[0].spec()  # raises InputError for a folder without a run to measure
        if not of_path:
            raise InputError(f"{path} holds no run with a checkpoint")
        found += of_path
    return found


def load_simulation(directory: RunDirectory, data_dir: str | None = None) -> Simulation:
    """Build the simulation of a run in the state of its newest checkpoint. Raises InputError if there is none."""
    if directory.checkpoint is None:
        raise InputError(f"{directory.path} has no checkpoint")
    spec = directory.spec()
    sim = spec.model_copy(update={"data_dir": data_dir or spec.data_dir}).build()
    sim.load(directory.checkpoint)
    return sim


def measure_run(
    directory: RunDirectory,
    measures: Sequence[Measure],
    max_samples: int,
    data_dir: str | None,
    progress: Progress,
) -> Flatness:
    """Take measures of the model in a run's newest checkpoint, and save the findings of each before the next one."""
    sim = load_simulation(directory, data_dir)
    found: list[Finding] = []
    with directory.writing():
        for measure in check_measures(measures, sim.objective.module):
            new = sim.flatness([measure], max_samples, progress).findings
            check_names(found := [*found, *new])
            directory.add_findings(new)
    return Flatness(tuple(directory.findings()))

"""Measuring finished or stopped runs again: the model, its clients, and the round that would follow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from ..core.errors import InputError
from ..engine.simulation import Simulation
from ..metrics.flatness import Flatness, Measure, ProgressCallback
from .config_errors import validated
from .run_directory import RunDirectory
from .schema import Section
from .spec import LIGHT, MeasureSection, StudySpec, build_measure
from .studies import run_directory


class Asked(Section):
    """Measures as a user writes them: names, or tables with a name and settings."""

    measures: list[MeasureSection] = Field(list(LIGHT), validate_default=True)


def asked(measures: Sequence[object]) -> list[Measure]:
    """Measures from names and tables. Raises InputError that names the one that is wrong."""
    return [build_measure(one) for one in validated(Asked, {"measures": list(measures)} if measures else {}).measures]


def folders_of(paths: Sequence[Path]) -> list[RunDirectory]:
    """The run folders at or below `paths`: runs, and studies with all runs that have begun."""
    return [found for path in paths for found in _folders(path)]


def _folders(path: Path) -> list[RunDirectory]:
    if (path / "config.toml").exists():
        return [RunDirectory(path)]
    if not (path / "study.toml").exists():
        raise InputError(f"{path} holds neither a run (config.toml) nor a study (study.toml)")
    spec = StudySpec.load(path / "study.toml")
    begun = [found for found in (run_directory(one, path) for one in spec.runs()) if found.checkpoint]
    if not begun:
        raise InputError(f"{path} holds no run with a checkpoint")
    return begun


def reopened(directory: RunDirectory, data_dir: str | None = None) -> Simulation:
    """The simulation of a run as its newest checkpoint left it. Raises InputError if there is none."""
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
    progress: ProgressCallback,
) -> Flatness:
    """Measure the model of a run's newest checkpoint, one measure after another, each kept as soon as it is done."""
    sim = reopened(directory, data_dir)
    with directory.writing():
        for one in measures:
            directory.add_findings(sim.flatness([one], max_samples, progress).findings)
    return Flatness(tuple(directory.findings()))

"""Extends runs and studies by further rounds. The rounds so far are kept as they are."""

from __future__ import annotations

import warnings
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from ..core.errors import ChangedWarning, InputError
from ..files import flush_folder, system_errors
from .config_errors import validated
from .run_directory import RunDirectory
from .runner import load_newest_checkpoint
from .spec import Experiment, RunSpec, StudySpec
from .studies import load_study, run_directory, write_study, writing_study

Spec = TypeVar("Spec", bound=Experiment)


def with_rounds(spec: Spec, rounds: int) -> Spec:
    """Return `spec` with this number of `rounds`. Raises InputError if that is not possible."""
    return validated(type(spec), spec.table() | {"rounds": rounds})


def extend_run(directory: RunDirectory, rounds: int, strict: bool = False) -> RunSpec:
    """Make the run in `directory`, finished or not, one of so many `rounds`, which are not computed here.

    What was found out about the model that is no longer the final one is removed: summary, model and flatness. Raises
    InputError, and changes nothing, if the run has as many rounds, or cannot go on: its checkpoints are damaged, its
    cohorts are listed and are not enough, or, with `strict`, versions or code are others.
    """
    spec = directory.spec()
    longer = _with_more(spec, rounds, directory.path)
    with directory.writing():
        _check_it_can_go_on(longer, directory, strict)
        directory.reopen(longer)
    return longer


def extend_study(path: Path, rounds: int, strict: bool = False) -> StudySpec:
    """Make the study in `path` one of so many `rounds`; runs that have begun are extended, and nothing is computed.

    Killed in between and called again, it goes on. Raises InputError as `extend_run` does.
    """
    spec = load_study(path)
    if "rounds" in spec.grid:
        raise InputError(f"--rounds {rounds}: the grid of {path} says how many rounds each run has; extend that")
    longer = _with_more(spec, rounds, path)
    with writing_study(path):
        for before, after in zip(spec.runs(), longer.runs(), strict=True):
            old, new = run_directory(before, path), run_directory(after, path)
            if not old.has_begun or new.path.exists():
                continue
            old.check_same_run(before, any_rounds=True)
            if old.spec().rounds < rounds:
                extend_run(old, rounds, strict)
            with system_errors(old.path, "renamed"):
                old.path.rename(new.path)
                flush_folder(new.path.parent)
        write_study(longer, path)
    return longer


def _with_more(spec: Spec, rounds: int, path: Path) -> Spec:
    if rounds <= spec.rounds:
        raise InputError(f"--rounds {rounds}: {path} is of {spec.rounds} rounds already; give a larger number")
    if label := spec.planned_by_rounds():
        raise InputError(f"--rounds {rounds}: {label} has trained for the {spec.rounds} rounds that were planned, so "
                         f"{path} cannot get more; start anew with --out")  # fmt: skip
    return with_rounds(spec, rounds)


def _check_it_can_go_on(spec: RunSpec, directory: RunDirectory, strict: bool) -> None:
    """Raise InputError unless the newest whole checkpoint can be loaded for `spec`."""
    if directory.is_finished and not directory.checkpoints:
        raise InputError(f"{directory.path} cannot be extended: it has no checkpoint any more")
    with closing(spec.build(directory.state)) as sim, warnings.catch_warnings():
        warnings.simplefilter("ignore", ChangedWarning)  # it is said when the run goes on
        load_newest_checkpoint(sim, directory, strict)

"""The ledger of reproductions: a file with results of recipes beside the papers' numbers, and what computed them.

An entry has the share of the paper's rounds that was trained and the settings that differ from the recipe's, and is no
reproduction unless the share is 1 and nothing differs. Only results of code with a commit enter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from ..core.errors import InputError, printable
from ..files import locked, make_folder, read_json, write_text
from ..rounds.segments import commit_of_code
from ..rounds.settings import flattened
from .spec import RunSpec

DIRTY = "-dirty"
BUSY = "--record {}: another process is writing to it"
PATIENCE = 60.0  # seconds to wait for another process that records
# Settings that have a field of their own in an entry, or that change no accuracy by more than rounding.
FREE = ("rounds", "seed", "device", "executor", "flatness", "probes", "probe_every", "metrics")


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))
class LedgerEntry:
    """One method in one cell of a recipe; accuracies are test accuracies in per cent."""

    recipe: str
    cell: str
    method: str
    paper: str | None  # the number as the paper prints it; None if it has none
    ours: float  # mean over the seeds
    spread: float | None  # sample standard deviation over the seeds; None for one seed
    seeds: list[int]
    missing: list[int]  # seeds that were planned and have no result, since their runs diverged
    rounds: PositiveInt
    rounds_of_paper: PositiveInt
    changed: list[str]  # keys of settings that differ from the recipe's
    commits: list[str]

    @property
    def share(self) -> float:
        """The share of the paper's rounds."""
        return self.rounds / self.rounds_of_paper

    @property
    def why_none(self) -> str:
        """Why this is not a reproduction; empty if it is one."""
        reasons = [f"{self.share:.3g} of the rounds"] if self.rounds != self.rounds_of_paper else []
        return "; ".join(reasons + ([f"changed: {', '.join(self.changed)}"] if self.changed else []))

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells an entry from the others: all but its results."""
        return (self.recipe, self.cell, self.method, self.rounds, tuple(self.changed), tuple(self.seeds),
                tuple(self.commits))  # fmt: skip


def check_ledger(file: Path) -> None:
    """Raise InputError, before anything is trained, if the code has no commit or if `file` is no ledger."""
    check_commits([commit_of_code()], f"--record {file}")
    read_ledger(file)


def check_commits(commits: Sequence[str | None], what: str) -> list[str]:
    """Return the commits without repetitions. Raises InputError that names `what`, if one is unknown or dirty."""
    if not commits or None in commits:
        raise InputError(f"{what}: the commit of the code is unknown; run fedflat from the `src` of a git clone")
    known = list(dict.fromkeys(one for one in commits if one is not None))
    if dirty := [one for one in known if one.endswith(DIRTY)]:
        raise InputError(f"{what}: files differ from the commit, {dirty[0]}; commit them, and train in a new folder")
    return known


def changed_settings(run: RunSpec, recipe: RunSpec) -> list[str]:
    """Return the keys of settings, other than those of FREE, in which a run differs from the recipe's run."""
    ours, theirs = (_protocol(one) for one in (run, recipe))
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))


def _protocol(spec: RunSpec) -> Mapping[str, Any]:
    return flattened({key: value for key, value in spec.decisive().items() if key not in FREE})


def read_ledger(file: Path) -> list[LedgerEntry]:
    """Return the entries of a ledger; none without a file. Raises InputError, naming the file, if it is damaged."""
    if not file.exists():
        return []
    try:
        return TypeAdapter(list[LedgerEntry]).validate_python(read_json(file))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its content"
        raise InputError(f"{file} is no ledger of reproductions: {printable(place)[:80]}: {first['msg']}") from error


def record(file: Path, entries: Sequence[LedgerEntry]) -> None:
    """Add entries to a ledger, or replace those of the same runs; the file is complete at every moment.

    Raises InputError if the file is damaged or cannot be written, or if another process does not stop writing to it.
    """
    make_folder(file.absolute().parent)
    with locked(file.with_name(f".{file.name}.lock"), BUSY.format(file), PATIENCE):
        found = {one.identity: one for one in [*read_ledger(file), *entries]}
        ordered = sorted(found.values(), key=lambda one: json.dumps(one.identity))
        write_text(file, json.dumps([asdict(one) for one in ordered], indent=1, ensure_ascii=False) + "\n")

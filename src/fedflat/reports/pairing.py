"""Which runs make a row, which row it is compared with, and what a reader must know of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import InputError
from ..engine.arguments import BF16
from ..experiments.settings_tables import identities, labels
from ..methods import plain
from ..metrics.protocols import Protocol, long_mean
from ..rounds.settings import settings_key
from .comparison_data import FinishedRun, curve_of
from .run_settings import HASHES, batches_of, settings_of_all

# Runs of one seed are paired only if they share these settings; otherwise not only their methods differ. In words.
PAIRED_BY = {
    "partition_hash": "partition",
    "data": "data",
    "data_hash": "samples",
    "augmentation": "augmentation",
    "model": "model",
    "model_hash": "initial weights",
    "base_hash": "frozen parameters",
    "layers": "layers of the model",
    "loss": "loss",
    "batches": "batches",
    "participation": "participation",
    "weights": "weights of clients",
    "precision": "precision",
}


@dataclass(frozen=True)
class Group:
    """The runs of one row: they differ in the seed only."""

    label: str
    settings: Mapping[str, Any]  # by name
    runs: list[FinishedRun] = field(default_factory=list)


def grouped(runs: Sequence[FinishedRun]) -> list[Group]:
    """Runs by method and settings, in their order. Raises InputError for two with the same settings and seed."""
    groups: dict[frozenset[tuple[str, str]], Group] = {}
    methods, settings = [run.method for run in runs], settings_of_all(runs)
    names, keys = labels(methods, settings), identities(methods, settings)
    for run, label, own, key in zip(runs, names, settings, keys, strict=True):
        group = groups.setdefault(key, Group(label, own))
        for other in group.runs:
            if other.seed == run.seed:
                raise InputError(_twice(runs, other, run))
        group.runs.append(run)
    return list(groups.values())


def _twice(runs: Sequence[FinishedRun], one: FinishedRun, other: FinishedRun) -> str:
    """The message for two runs of which only one can count: which they are, and in what they differ after all."""
    places = [place for place, run in enumerate(runs) if run is one or run is other]
    folders = [str(run.directory.path) for run in (one, other) if hasattr(run, "directory")]
    which = " and ".join(folders) or f"numbers {' and '.join(map(str, places))} of the list"
    differing = [name for name, value in other.settings.items() if one.settings.get(name) != value]
    only = f", and differ only in {', '.join(differing)}" if differing else ""
    return f"two runs of {one.method} have the same settings and seed {one.seed}{only}: {which}; leave one of them out"


def paired(groups: Sequence[Group], baseline: str | None) -> list[Group | None]:
    """For each group the baseline's group that it is compared with; itself for a baseline, None if there is none.

    Of the baseline's groups that share everything in `PAIRED_BY`, it is the one with the most other settings in common,
    and of several the first. Raises InputError if the baseline that was asked for has no run.
    """
    wanted = plain(baseline or "FedAvg")
    named = [group for group in groups if plain(group.label) == wanted]
    of_method = named or [group for group in groups if plain(group.runs[0].method) == wanted]
    if not of_method and baseline is not None:
        names = ", ".join(group.label for group in groups)
        raise InputError(f"baseline = {baseline!r} has no run; there are runs of {names}")
    candidates = of_method or [group for group in groups if group.runs[0].method == groups[0].runs[0].method]
    return [_closest(group, candidates) for group in groups]


def _closest(group: Group, candidates: Sequence[Group]) -> Group | None:
    """The first of the candidates that can be paired with `group` and have the most settings in common with it."""
    others = {name: value for name, value in group.settings.items() if not name.startswith("method.")}

    def shared(candidate: Group) -> int:
        return sum(candidate.settings.get(name) == value for name, value in others.items())

    return max((one for one in candidates if not differences(group, one)), key=shared, default=None)


def differences(ours: Group, theirs: Group) -> list[str]:
    """The settings of `PAIRED_BY` in which two groups differ with any seed that both have.

    Without such a seed, only those that do not depend on the seed.
    """
    by_seed = {run.seed: run for run in theirs.runs}
    pairs = [(run, by_seed[run.seed]) for run in ours.runs if run.seed in by_seed]
    names = list(PAIRED_BY) if pairs else [name for name in PAIRED_BY if name not in HASHES]
    pairs = pairs or [(ours.runs[0], theirs.runs[0])]
    return [name for name in names if any(_value(one, name) != _value(other, name) for one, other in pairs)]


def _value(run: FinishedRun, name: str) -> Any:
    return batches_of(run.settings["client"]) if name == "batches" else run.settings[name]


def notes(groups: Sequence[Group], pairs: Sequence[Group | None], baseline: str, protocol: Protocol) -> list[str]:
    """What a reader must know before trusting the comparison."""
    runs = [run for group in groups for run in group.runs]
    return [
        *_unpaired(groups, pairs, baseline),
        *_own_training(groups),
        *([f"{BF16.capitalize()}."] if any(_value(run, "precision") == "bf16" for run in runs) else []),
        *(["Runs have different numbers of rounds."] if len({run.summary["rounds"] for run in runs}) > 1 else []),
        *(_other_seeds(groups, pairs)),
        *(_long_mean(runs) if protocol == "last" else ()),
    ]


def _unpaired(groups: Sequence[Group], pairs: Sequence[Group | None], baseline: str) -> Iterator[str]:
    """For each reason why groups have no baseline, which groups these are."""
    references = [pair for pair in pairs if pair is not None]
    reasons: dict[str, list[str]] = {}
    for group, pair in zip(groups, pairs, strict=True):
        if pair is None:
            found = min((differences(group, one) for one in references), key=len)
            reasons.setdefault(", ".join(PAIRED_BY[name] for name in found), []).append(group.label)
    for reason, names in reasons.items():
        yield f"Not paired with {baseline}, whose {reason} differ: {', '.join(names)}."


def _own_training(groups: Sequence[Group]) -> Iterator[str]:
    """Say so if local training differs between methods; where it differs within one, labels tell it."""
    clients = [(settings_key(group.runs[0].settings["client"]), group.runs[0].method) for group in groups]
    own, ways = dict(clients), set(clients)
    if len(own) > 1 and len(ways) == len({method for _, method in ways}):
        yield f"Local training has settings of their own for some methods: see {', '.join(own.values())} below."


def _other_seeds(groups: Sequence[Group], pairs: Sequence[Group | None]) -> Iterator[str]:
    for group, reference in zip(groups, pairs, strict=True):
        if reference is not None:
            own, theirs = (sorted(run.seed for run in one.runs) for one in (group, reference))
            if own != theirs:
                yield f"Not paired: {group.label} has seeds {own}, {reference.label} has {theirs}."


def _long_mean(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Say so if the mean over the last evaluations has more than a fifth of a run in it."""
    for run in runs:
        found = long_mean(int(run.summary["test_accuracy_evaluations"]), len(curve_of(run).rounds))
        if found:
            yield f"{found[0].upper()}{found[1:]}."
            return

"""A set by name, split over clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..core.errors import InputError
from .conversion import Progress
from .federated import FederatedData, Holdings
from .hub import download
from .options import DataOptions
from .partition import IID, Partition
from .partition.scheme import Samples
from .preparation import AUGMENTATIONS
from .selection import selected
from .source import FileSet, Loaded, Reading, data_root
from .sources import known_source, source
from .validation import hold_out


def load(
    name: str,
    clients: int,
    partition: Partition | None = None,
    seed: int = 0,
    data_dir: str | None = None,
    **options: Any,
) -> FederatedData:
    """The set `name` split over `clients` clients (default split: IID). The same seed gives the same split.

    data_dir: folder that holds a folder with the set's files, by default $FEDFLAT_DATA; the first
        start converts them, later ones map the result into memory.
    options: the fields of `DataOptions`: augment, partial, train_samples, test_samples, test_domain,
        image_size, validation.

    Raises ValueError, naming the field, for an unknown name or option, files that are missing, damaged
    or not the whole set, and a split that cannot be made.
    """
    for what, value, least in (("clients", clients, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"data.{what} must be a whole number of at least {least}, got {value!r}")
    if not isinstance(partition, Partition | None):
        raise InputError(f"partition must be a scheme such as Dirichlet(alpha=0.1), got {partition!r}")
    known = known_source(name)
    chosen = checked_options(options)
    reading = Reading(data_dir=data_dir, partial=chosen.partial, image_size=chosen.image_size)
    loaded = selected(source(known).load(known, reading), chosen)
    if chosen.augment != "none" and loaded.train.x.ndim != 4:
        raise InputError(f"data.augment = {chosen.augment!r} goes with pictures; {known} has none")
    return divide(loaded, known, clients, partition or IID(), seed, chosen)


def prepare(
    name: str,
    data_dir: str | None = None,
    hub: bool = False,
    partial: bool = False,
    image_size: int | None = None,
    progress: Progress | None = None,
    revision: str | None = None,
) -> Loaded:
    """Convert the files of the set `name` now, so that the first run starts at once; with `hub`, fetch them first.

    `revision` is the commit, branch or tag to fetch, by default the commit of the last time. `progress` is told
    (part, samples done, samples in all). Raises ValueError, naming the field, as `load` does.
    """
    known = source(name)
    if revision is not None and not hub:
        raise InputError(f"--revision {revision} says what to fetch from the hub; give --hub, too")
    if hub:
        if not isinstance(known, FileSet):
            raise InputError(f"--hub: {known_source(name)} is not on the hub; {known.where}")
        download(known_source(name), known, data_root(data_dir, name), revision)
    checked_options({"image_size": image_size})
    reading = Reading(data_dir, partial, image_size)
    return known.load(known_source(name), reading if progress is None else replace(reading, progress=progress))


def divide(
    loaded: Loaded, name: str, clients: int, scheme: Partition, seed: int, options: DataOptions
) -> FederatedData:
    """The samples of a set split over clients by `scheme`, with the clients' validation sets if any are asked for."""
    train = loaded.train
    samples = Samples(train.y.numpy(), loaded.classes, train.domain, loaded.domains, train.user)
    parts = Holdings.of(scheme.split(samples, clients, _generator(seed)))
    data = FederatedData(
        x=train.x,
        y=train.y,
        members=parts.members,
        offsets=parts.offsets,
        classes=loaded.classes,
        test=loaded.test and (loaded.test.x, loaded.test.y),
        name=_told(name, len(train.y)),
        partition=str(scheme),
        preparation=loaded.preparation,
        augmentation=AUGMENTATIONS[options.augment],
        vocabulary=loaded.vocabulary,
        contents=loaded.contents,
    )
    return hold_out(data, options.validation, _generator(seed, 1)) if options.validation else data


def _told(name: str, samples: int) -> str:
    """The set's name, and how much of it is used if that is not all."""
    whole = source(name).sizes.get("train", samples)
    return name if samples == whole else f"{name} ({samples:,} of {whole:,} training samples)"


def checked_options(options: dict[str, Any]) -> DataOptions:
    """`options` as DataOptions. Raises InputError for an unknown one."""
    unknown = sorted(set(options) - set(DataOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(DataOptions.__dataclass_fields__)
        raise InputError(f"data.{unknown[0]} is unknown; known options are {known}")
    return DataOptions(**options)


def _generator(seed: int, *counters: int) -> np.random.Generator:
    """Purpose 0 of the engine's draws: the partition, and with a counter 1 the validation sets."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, *counters)))

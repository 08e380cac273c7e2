"""Loading a data set by name, splitting it over clients, and keeping validation samples apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ..core.errors import InputError, shortened
from ..core.object_references import portable
from ..core.plain_numbers import takes_numbers
from ..core.registry import suggestion
from ..core.task import Kind
from .arrays import check_shapes
from .conversion import Progress
from .dataset import BundledDataset, FileDataset, LoadedDataset, data_root
from .federated import FederatedData, Holdings, checked_task
from .folder_dataset import FolderDataset, FoundDataset
from .hub import download
from .labels import INDICES, Labelling, task_labels
from .partition import IID, Partition
from .partition.scheme import Samples, parts_of
from .preparation import AUGMENTATIONS, Augmentation
from .readers.layout import CHANNELS
from .sample_format import OWN_FORMAT, SampleFormat
from .selection import DataOptions, select_samples
from .sources import known_source, source


def _no_progress(part: str, done: int, total: int) -> None:
    """Ignore the progress of a conversion."""


@takes_numbers
def load(
    name: str,
    clients: int,
    partition: Partition | None = None,
    seed: int = 0,
    data_dir: str | None = None,
    task: Kind = "classification",
    **options: Any,
) -> FederatedData:
    """The data set `name` split over `clients` clients (default split: IID). The same seed gives the same split.

    data_dir: folder that holds a folder with the data set's files, by default $FEDFLAT_DATA; the first
        start converts them, later ones map the result into memory.
    task: "multi-label" or "regression", for labels in your own folder that are no classes.
    options: the fields of `DataOptions`: augment, partial, train_samples, test_samples, test_domain,
        image_size, text_length, validation, tokenizer, labels, class_names.

    Raises ValueError, naming the field, for an unknown name or option, files that are missing, damaged
    or not the whole set, and a split that cannot be made.
    """
    check_split(clients, partition, seed)
    known = known_source(name)
    chosen = checked_options(options)
    whole = source(known).load(known, data_dir, chosen.partial, chosen.form, _no_progress)
    how = Labelling(chosen.labels, chosen.class_names)
    loaded = select_samples(labelled(whole, checked_task(task), known, how), chosen)
    used, there_are = len(loaded.train.y), source(known).sizes.get("train", len(loaded.train.y))
    part = "" if used == there_are else f" ({used:,} of {there_are:,} training samples)"
    return divide(loaded, known + part, clients, partition or IID(stratified=False), seed, chosen)


def described(
    name: str,
    data_dir: str | None = None,
    form: SampleFormat = OWN_FORMAT,
    task: Kind = "classification",
    how: Labelling = INDICES,
) -> FileDataset | BundledDataset | FoundDataset:
    """The data set `name` with its classes, sizes and shape; the files of a user's own folder are read for that."""
    known, described_by = known_source(name), source(name)
    if isinstance(described_by, BundledDataset) and not described_by.classes:  # a function of the user's own
        return replace(described_by, classes=labelled(described_by.read(), task, known, how).classes)
    if not isinstance(described_by, FolderDataset):
        return described_by
    loaded = described_by.load(known, data_dir, True, form, _no_progress)
    return described_by.described(labelled(loaded, task, known, how))


def labelled(loaded: LoadedDataset, task: Kind, name: str, how: Labelling = INDICES) -> LoadedDataset:
    """`loaded` with the labels of a `task`. Raises InputError, naming the set, if its labels are of another kind."""
    class_numbers = loaded.train.y.ndim == 1 and not loaded.train.y.is_floating_point()
    if task != "classification" and (loaded.classes or class_numbers):
        raise InputError(f"data.name = {name!r} has classes, and {task} needs other labels: floats, or (n, k) in npz")
    if loaded.classes and how != INDICES:
        raise InputError(f"data.labels and data.class_names say what labels of your own mean; {name} declares its "
                         f"{loaded.classes} classes")  # fmt: skip
    if loaded.classes:
        return loaded
    parts = {"training": loaded.train} | ({} if loaded.test is None else {"test": loaded.test})
    for part, some in parts.items():
        check_shapes(some.x.shape, some.y.shape, part, task)
    y, outputs, names = task_labels({part: some.y for part, some in parts.items()}, loaded.class_names, task, how)
    test = loaded.test and replace(loaded.test, y=y["test"])
    train = replace(loaded.train, y=y["training"])
    return replace(loaded, train=train, test=test, classes=outputs, task=task, class_names=names)


def check_split(clients: Any, partition: Any, seed: Any) -> None:
    """Raise InputError, naming the field, for what cannot describe a split."""
    for what, value, least in (("clients", clients, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"data.{what} must be a whole number of at least {least}, got {value!r}")
    if not isinstance(partition, Partition | None):
        raise InputError(f"partition must be a scheme such as Dirichlet(alpha=0.1), got {shortened(repr(partition))}")


def prepare(
    name: str,
    data_dir: str | None = None,
    hub: bool = False,
    partial: bool = False,
    image_size: int | None = None,
    progress: Progress | None = None,
    revision: str | None = None,
    text_length: int | None = None,
    tokenizer: str | None = None,
) -> LoadedDataset:
    """Convert the files of the data set `name` now, so that the first run starts at once.

    With `hub` they are fetched first; `revision` is the commit, branch or tag to fetch, by default the last commit
    that was fetched. `progress` is called with (part, samples done, samples in all). image_size, text_length and
    tokenizer are those of `DataOptions`. Raises ValueError, naming the field, as `load` does.
    """
    known = source(name)
    if revision is not None and not hub:
        raise InputError(f"revision (--revision) = {revision!r} says what to fetch from the hub; give hub (--hub), too")
    if hub:
        if not isinstance(known, FileDataset):
            raise InputError(f"hub (--hub): {known_source(name)} is not on the hub; {known.where}")
        download(known_source(name), known, data_root(data_dir, name), revision)
    form = DataOptions(image_size=image_size, text_length=text_length, tokenizer=tokenizer).form
    return known.load(known_source(name), data_dir, partial, form, progress or _no_progress)


def divide(
    loaded: LoadedDataset, name: str, clients: int, scheme: Partition, seed: int, options: DataOptions
) -> FederatedData:
    """The samples of a data set split over clients by `scheme`, with validation sets if `options` ask for them."""
    train = loaded.train
    if loaded.task != "classification" and scheme.needs_classes:
        raise InputError(f"partition = {scheme} splits by class, and the labels are those of {loaded.task}; use iid, "
                         "domain or natural")  # fmt: skip
    labels = train.y.numpy() if loaded.task == "classification" else np.zeros(len(train.y), dtype=np.int64)
    samples = Samples(labels, loaded.classes, train.domain, loaded.domains, train.user)
    parts = Holdings.of(parts_of(scheme, samples, clients, _generator(seed)))
    data = FederatedData(
        x=train.x,
        y=train.y,
        members=parts.members,
        offsets=parts.offsets,
        classes=loaded.classes,
        test=None if loaded.test is None else (loaded.test.x, loaded.test.y),
        name=portable(name),
        partition=scheme,
        preparation=loaded.preparation,
        augmentation=augmentation_of(options.augment, train.x, name),
        vocabulary=loaded.vocabulary,
        contents=loaded.contents,
        task=loaded.task,
        class_names=loaded.class_names,
    )
    return with_validation(data, options.validation, seed)


def with_validation(data: FederatedData, share: float, seed: int) -> FederatedData:
    """`data` with a `share` of each client's samples held out, drawn by `seed`; unchanged if that is 0."""
    return hold_out(data, share, _generator(seed, 1)) if share else data


def augmentation_of(augment: str, x: Tensor, name: str) -> Augmentation | None:
    """The augmentation called `augment`. Raises InputError if the samples `x` (n, *shape) are no pictures."""
    if augment != "none" and x.ndim != 4:
        raise InputError(f"data.augment = {augment!r} goes with pictures; {name} has none")
    if augment != "none" and x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        raise InputError(f"data.augment = {augment!r} goes with pictures (n, channels, height, width); {name} has "
                         f"{tuple(x.shape)}")  # fmt: skip
    return AUGMENTATIONS[augment]


def hold_out(data: FederatedData, share: float, rng: np.random.Generator) -> FederatedData:
    """Move a random `share` of each client's samples to a validation set; every client keeps samples to train on.

    The validation samples are drawn from the client's own samples, so they have its label distribution. All copies of
    a sample that a client holds twice are in the same set. A client with fewer than two different samples has none for
    validation. Raises InputError if that is every client.
    """
    train, held_out = [], []
    for own in Holdings(data.members, data.offsets).parts():
        different = np.unique(own)
        number = min(max(1, round(share * len(different))), len(different) - 1)
        chosen = rng.choice(different, number, replace=False)
        train.append(own[~np.isin(own, chosen)])
        held_out.append(np.sort(chosen))
    if not any(map(len, held_out)):
        raise InputError(f"data.validation = {share} needs a client with two different samples; "
                         "use fewer clients, or train without validation")  # fmt: skip
    rest = Holdings.of(train)
    return replace(data, members=rest.members, offsets=rest.offsets, validation=Holdings.of(held_out))


def checked_options(options: dict[str, Any]) -> DataOptions:
    """`options` as DataOptions. Raises InputError for an unknown one."""
    unknown = sorted(set(options) - set(DataOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(DataOptions.__dataclass_fields__)
        close = suggestion(unknown[0], DataOptions.__dataclass_fields__)
        raise InputError(f"data.{unknown[0]} is unknown; known options are {known}{close}")
    return DataOptions(**options)


def _generator(seed: int, *counters: int) -> np.random.Generator:
    """Random numbers for a split (purpose 0 in `rounds.randomness`); with the counter 1, those for validation sets."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0, *counters)))

"""Loading of data sets by name, and their preparation from files or from the hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.hyper import takes_numbers
from ..core.progress import Progress, no_progress
from ..core.registry import suggestion
from ..core.task import DEFAULTS, FORMS, Kind
from ..hub import commit_of, fetch, pin, pinned
from .arrays import check_shapes
from .conversion import OWN_FORMAT, SampleFormat
from .dataset import BundledDataset, FileDataset, FoundDataset, LoadedDataset, data_root
from .federated import FederatedData, divide
from .labels import INDICES, Labelling, checked_task, task_labels
from .own_folders import FolderDataset
from .partition import IID, Partition
from .selection import DataOptions, check_split, select_samples
from .sources import known_source, source


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
    """Load the data set `name`, split over `clients` clients (default split: IID). The same seed gives the same split.

    data_dir: folder that holds a folder with the data set's files, by default $FEDFLAT_DATA; the first
        call converts the files, later calls map the result into memory.
    task: kind of the labels, for a set or a folder whose samples have not one class each; see `FederatedData.split`.
    options: the fields of `DataOptions`: augment, partial, train_samples, test_samples, test_domain,
        image_size, text_length, validation, tokenizer, labels, class_names.

    Raises ValueError, naming the field, for an unknown name or option, files that are missing, damaged
    or incomplete, and a split that cannot be made.
    """
    check_split(clients, partition, seed)
    known = known_source(name)
    chosen = checked_options(options)
    complete = source(known).load(known, data_dir, chosen.partial, chosen.form, no_progress)
    loaded = select_samples(labelled(complete, checked_task(task), known, chosen.labelling), chosen)
    used, there_are = len(loaded.train.y), source(known).sizes.get("train", len(loaded.train.y))
    part = "" if used == there_are else f" ({used:,} of {there_are:,} training samples)"
    return divide(loaded, known + part, clients, partition or IID(stratified=False), seed, chosen)


def described(
    name: str,
    data_dir: str | None = None,
    form: SampleFormat = OWN_FORMAT,
    task: Kind = "classification",
    how: Labelling = INDICES,
) -> FileDataset | FoundDataset:
    """Return a description of the data set `name`: classes, sizes and shape. Files of a user's own folder are read."""
    known, described_by = known_source(name), source(name)
    if isinstance(described_by, BundledDataset) and not described_by.classes:  # a function of the user's own
        return replace(described_by, classes=labelled(described_by.read(), task, known, how).classes)
    if not isinstance(described_by, FolderDataset):
        return described_by
    loaded = described_by.load(known, data_dir, True, form, no_progress)
    return described_by.described(labelled(loaded, task, known, how))


def labelled(loaded: LoadedDataset, task: Kind, name: str, how: Labelling = INDICES) -> LoadedDataset:
    """Return `loaded` with labels for `task`. Raises InputError, naming the set, if its labels do not fit the task."""
    whole = loaded.train.y.ndim == 1 and not loaded.train.y.is_floating_point()
    class_numbers = whole and not loaded.schema.is_of_table
    if loaded.classes and loaded.task not in ("classification", task):
        raise InputError(f"data.name = {name!r} has labels for {loaded.task}, not for {task}; set loss = "
                         f"{DEFAULTS[loaded.task].loss!r}, or in Python task = {loaded.task!r}")  # fmt: skip
    if task not in (loaded.task, "classification") and (loaded.classes or class_numbers):
        raise InputError(f"data.name = {name!r} has classes, and {task} needs other labels: floats, or "
                         f"{FORMS[task].shape} in npz")  # fmt: skip
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


def prepare(
    name: str,
    data_dir: str | None = None,
    hub: bool = False,
    revision: str | None = None,
    progress: Progress = no_progress,
    **options: Any,
) -> LoadedDataset:
    """Convert the files of the data set `name` now, so that the first run starts at once.

    With `hub` the files are fetched first; `revision` is the commit, branch or tag to fetch, by default the last commit
    that was fetched. `progress` is called with (part, samples done, samples in all). options: the fields of
    `DataOptions` that decide what is cached: partial, image_size, text_length and tokenizer. Raises ValueError, naming
    the field, as `load` does.
    """
    known = source(name)
    if revision is not None and not hub:
        raise InputError(f"revision (--revision) = {revision!r} says what to fetch from the hub; give hub (--hub), too")
    if hub:
        if not isinstance(known, FileDataset):
            raise InputError(f"hub (--hub): {known_source(name)} is not on the hub; {known.where}")
        download(known_source(name), known, data_root(data_dir, name), revision)
    chosen = checked_options(options)
    return known.load(known_source(name), data_dir, chosen.partial, chosen.form, progress)


def download(name: str, known: FileDataset, root: Path, revision: str | None = None) -> Path:
    """Fetch the parquet files of the data set `name` from the Hugging Face hub into the folder `root`/`name`.

    The folder is returned. `revision` is a commit, branch or tag of the repository. The default is the last commit that
    was fetched, which `hub.json` in the folder records, or else the newest commit. Existing files are not fetched.

    Raises InputError if the extra `hub` is not installed, the hub does not have the data set or the revision, or the
    hub cannot be reached.
    """
    if known.hub is None:
        raise InputError(f"data.name = {name!r} is not on the hub; give data_dir (--data-dir) with {known.where}")
    folder, repository = root / name, known.hub.repository
    commit = (pinned(folder, repository) if revision is None else None) or commit_of("dataset", repository, revision)
    files = f"{known.hub.folder}/*.parquet" if known.hub.folder else "*.parquet"
    fetch("dataset", repository, commit, folder, files)
    pin(folder, repository, commit)
    return folder


def checked_options(options: dict[str, Any]) -> DataOptions:
    """Return `options` as DataOptions. Raises InputError for an unknown option."""
    unknown = sorted(set(options) - set(DataOptions.__dataclass_fields__))
    if unknown:
        known = ", ".join(DataOptions.__dataclass_fields__)
        close = suggestion(unknown[0], DataOptions.__dataclass_fields__)
        raise InputError(f"data.{unknown[0]} is unknown; known options are {known}{close}")
    return DataOptions(**options)

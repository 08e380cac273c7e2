"""A user's own samples, from arrays or a dataset object, split over clients."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from ..core.errors import InputError
from ..core.task import Kind
from .arrays import Columns, groups, has_columns, read_columns, refuse_other_columns, samples_and_labels, stored_parts
from .dataset import LoadedDataset, SampleArrays
from .federated import FederatedData
from .labels import INDICES, Labelling
from .loading import check_split, divide
from .partition import IID, Partition
from .selection import DataOptions, in_proportion, rows_of

LARGEST_TEST_SHARE = 0.9


def split(
    x: Any,
    y: Any,
    columns: Columns | None,
    domain: Any,
    user: Any,
    clients: int,
    partition: Partition | None,
    test: Any,
    seed: int,
    classes: int | None,
    name: str,
    options: DataOptions,
    task: Kind,
) -> FederatedData:
    """Own samples, less those for test, split over clients; see `FederatedData.split`."""
    check_split(clients, partition, seed)
    given = x if y is None else (x, y)
    share = isinstance(test, Real)
    parts = {"training": given} | ({} if test is None or share else {"test": test})
    refuse_other_columns(parts)
    stored, outputs, names = stored_parts(
        {part: samples_and_labels(some, part, columns, task) for part, some in parts.items()},
        task, _labelling(given, columns, classes, options, task),
    )  # fmt: skip
    whole, domains = _with_groups(*stored["training"], {"domain": domain, "user": user}, given)
    train, held_out = _without_share(whole, test) if share else (_copied(whole), None)
    if "test" in stored:
        held_out = _copied(SampleArrays(*stored["test"]))
    loaded = LoadedDataset(train, held_out, outputs, domains=domains, task=task, class_names=names)
    return divide(loaded, name, clients, partition or IID(stratified=False), seed, options)


def _with_groups(x: Tensor, y: Tensor, values: dict[str, Any], dataset: Any) -> tuple[SampleArrays, tuple[str, ...]]:
    """Return samples with domains and users, and names of domains; a text names a column of the dataset."""
    ids: dict[str, Any] = {"domain": None, "user": None}
    names: dict[str, tuple[str, ...]] = {"domain": ()}
    for what, some in values.items():
        if some is not None:
            by_name = isinstance(some, str) and has_columns(dataset)
            own = read_columns(dataset, [some], what)[0] if by_name else some
            ids[what], names[what] = groups(own, what, len(y))
    return SampleArrays(x, y, ids["domain"], ids["user"]), names["domain"]


def _labelling(
    dataset: Any, columns: Columns | None, classes: int | None, options: DataOptions, task: Kind
) -> Labelling:
    """Return what the call says about classes, or else what the dataset's column of labels declares."""
    given = Labelling(options.labels, options.class_names, classes)
    if given != INDICES or task != "classification" or columns is None or not has_columns(dataset):
        return given
    feature = (getattr(dataset, "features", None) or {}).get(columns[1])
    names = tuple(getattr(feature, "names", None) or ())
    return Labelling(class_names=names, classes=getattr(feature, "num_classes", None))


def _copied(samples: SampleArrays) -> SampleArrays:
    """The samples in memory of their own, so that a later change of the user's arrays changes nothing here."""
    return replace(samples, x=samples.x.clone(), y=samples.y.clone())


def _without_share(samples: SampleArrays, share: float) -> tuple[SampleArrays, SampleArrays]:
    """The samples without a `share` of them, and that share: classes in proportion, the same for every seed."""
    if isinstance(share, bool) or not 0 < share <= LARGEST_TEST_SHARE:
        raise InputError(f"data: test must be a share in (0, {LARGEST_TEST_SHARE}], a pair (x, y) or a dataset, "
                         f"got {share!r}")  # fmt: skip
    number = round(share * len(samples.y))
    if not 0 < number < len(samples.y):
        raise InputError(f"data: test = {share} of {len(samples.y)} samples leaves none for test or for training")
    chosen = in_proportion(samples.y, number)
    rest = np.setdiff1d(np.arange(len(samples.y)), chosen)
    return rows_of(samples, rest), rows_of(samples, chosen)

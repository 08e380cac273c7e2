"""A user's own samples, from arrays or a dataset object, split over clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from ..core.errors import InputError, shortened
from ..core.task import Kind
from .arrays import Columns, groups, has_columns, outputs_for, read_columns, read_items, stacked, tensors
from .dataset import LoadedDataset, SampleArrays
from .federated import FederatedData
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
    named = {what: values for what, values in (("domain", domain), ("user", user)) if values is not None}
    whole, domains = _samples(x, y, columns, named, task)
    if isinstance(test, float | int):
        train, held_out = _without_share(whole, test)
    else:
        train, held_out = _copied(whole), None
    if held_out is None and test is not None:
        held_out = _copied(_samples(test, None, columns, {}, task, "test")[0])
    labels = [whole.y] if held_out is None else [whole.y, held_out.y]
    known = classes if classes is not None or task != "classification" else _named_classes(x, columns)
    known = known if known is not None else outputs_for(task, labels)
    loaded = LoadedDataset(train, held_out, known, domains=domains, task=task)
    return divide(loaded, name, clients, partition or IID(stratified=False), seed, options)


def _samples(
    x: Any, y: Any, columns: Columns | None, named: dict[str, Any], task: Kind, who: str = "training"
) -> tuple[SampleArrays, tuple[str, ...]]:
    """The samples of arrays or of a dataset, and the names of their domains; `named` are domains and users."""
    if y is None:
        if has_columns(x):
            x, y, named = _columns(x, columns, named, who)
        else:
            x, y = x if isinstance(x, tuple | list) and len(x) == 2 else read_items(x, who)
    if isinstance(x, list):
        x = stacked(x, who)
    if isinstance(y, list) and y and isinstance(y[0], np.ndarray | Tensor):  # the labels of a dataset's items
        y = stacked(y, who)
    x, y = tensors((x, y), who, task)
    found = {what: groups(values, what, len(y)) for what, values in named.items()}
    domain, domains = found.get("domain", (None, ()))
    return SampleArrays(x, y, domain, found.get("user", (None, ()))[0]), domains


def _columns(
    dataset: Any, columns: Columns | None, named: dict[str, Any], who: str
) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """The values of the columns x and y of a dataset, and of the columns that `named` names."""
    if not (isinstance(columns, tuple | list) and len(columns) == 2):
        raise InputError(f"data: say which columns of {who} hold x and y, as columns=('image', 'label'); it has "
                         f"{shortened(', '.join(map(str, dataset.column_names)))}")  # fmt: skip
    own = {what: values for what, values in named.items() if isinstance(values, str)}
    x, y, *others = read_columns(dataset, [*columns, *own.values()], who)
    return x, y, named | dict(zip(own, others, strict=True))


def _named_classes(dataset: Any, columns: Columns | None) -> int | None:
    """The number of classes that a dataset with columns declares for its labels; None if it declares none."""
    if columns is None or not has_columns(dataset):
        return None
    known: int | None = getattr((getattr(dataset, "features", None) or {}).get(columns[1]), "num_classes", None)
    return known


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

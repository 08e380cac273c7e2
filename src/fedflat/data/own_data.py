"""A user's own samples, as a data set before it is split: from arrays, dataset objects, or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError, printable, shortened
from ..core.object_references import portable
from ..core.task import Kind
from .arrays import (
    Columns,
    groups,
    has_columns,
    read_columns,
    refuse_other_columns,
    refuse_other_shapes,
    samples_and_labels,
    stored_parts,
)
from .dataset import BundledDataset, LoadedDataset, SampleArrays
from .labels import INDICES, Labelling, named
from .numbers import Array, alike
from .selection import in_proportion, rows_of

LARGEST_TEST_SHARE = 0.9


def own_clients(
    clients: Iterable[Any], test: Any, own_tests: Iterable[Any] | None, columns: Columns | None, task: Kind,
    how: Labelling,
) -> tuple[LoadedDataset, list[int], list[int]]:  # fmt: skip
    """Join the samples of all clients; return the joined data set and the number of samples of each client.

    The last list has the number of test samples of each client; it is empty if clients have none of their own. See
    `FederatedData.from_clients`.
    """
    if isinstance(clients, dict | str):
        raise InputError("data: from_clients takes a list of (x, y), one per client")
    given = {f"client {i}": client for i, client in enumerate(clients)}
    if not given:
        raise InputError("data: from_clients needs at least one client")
    tests = {} if own_tests is None else {f"test of client {i}": own for i, own in enumerate(own_tests)}
    if own_tests is not None and (test is not None or len(tests) != len(given)):
        raise InputError(f"data: own_tests has {len(tests)} test sets for {len(given)} clients, in place of test: give "
                         "one for each client, and no test")  # fmt: skip
    given |= {} if test is None else {"test": test}
    refuse_other_columns(given | tests)
    parts = {part: samples_and_labels(some, part, columns, task) for part, some in given.items()}
    of_clients = {part: samples_and_labels(some, part, columns, task) for part, some in tests.items()}
    if of_clients:
        parts["test"] = _joined(of_clients)
    stored, outputs, names = stored_parts(parts, task, how)
    held_out = stored.pop("test", None)
    x, y = (torch.cat(some) for some in zip(*stored.values(), strict=True))
    loaded = LoadedDataset(
        SampleArrays(x, y), held_out and SampleArrays(*held_out), outputs, task=task, class_names=names
    )
    return loaded, [len(own) for own, _ in stored.values()], [len(own) for own, _ in of_clients.values()]


def _joined(parts: Mapping[str, tuple[Tensor, Array]]) -> tuple[Tensor, Array]:
    """Join the samples and labels of several parts. Raises InputError, naming two, if they differ in kind or shape."""
    refuse_other_shapes(parts)
    first = next(iter(parts))
    for part, (_, y) in parts.items():
        if (y.dtype.kind == "U") != (parts[first][1].dtype.kind == "U"):
            raise InputError(f"data: {part} and {first} have labels of different kinds: texts and numbers")
    x = alike({part: own for part, (own, _) in parts.items()})
    return torch.cat(x), np.concatenate([y for _, y in parts.values()])


def own_samples(
    given: Any, test: Any, of_groups: Mapping[str, Any], columns: Columns | None, task: Kind, how: Labelling
) -> LoadedDataset:
    """Return the data set of a pair (x, y) or a dataset object; if `test` is a number, split off this share for test.

    See `FederatedData.split`.

    of_groups: for "domain" and for "user" the value of each sample, the name of a column, or None.
    """
    share = isinstance(test, Real)
    parts = {"training": given} | ({} if test is None or share else {"test": test})
    refuse_other_columns(parts)
    stored, outputs, names = stored_parts(
        {part: samples_and_labels(some, part, columns, task) for part, some in parts.items()},
        task, _labelling(given, columns, task, how),
    )  # fmt: skip
    samples, domains = _with_groups(*stored["training"], of_groups, given)
    train, held_out = _without_share(samples, test) if share else (_copied(samples), None)
    if "test" in stored:
        held_out = _copied(SampleArrays(*stored["test"]))
    return LoadedDataset(train, held_out, outputs, domains=domains, task=task, class_names=names)


def _labelling(dataset: Any, columns: Columns | None, task: Kind, how: Labelling) -> Labelling:
    """Return `how` if the user states classes; else the classes that the dataset's label column declares, if any."""
    if how != INDICES or task != "classification" or columns is None or not has_columns(dataset):
        return how
    feature = (getattr(dataset, "features", None) or {}).get(columns[1])
    names = tuple(getattr(feature, "names", None) or ())
    return Labelling(class_names=names, classes=getattr(feature, "num_classes", None))


def _with_groups(x: Tensor, y: Tensor, values: Mapping[str, Any], dataset: Any) -> tuple[SampleArrays, tuple[str, ...]]:
    """Return samples with domains and users, and the names of domains; a text in `values` is the name of a column."""
    ids: dict[str, Any] = {"domain": None, "user": None}
    names: dict[str, tuple[str, ...]] = {"domain": ()}
    for what, some in values.items():
        if some is not None:
            by_name = isinstance(some, str) and has_columns(dataset)
            own = read_columns(dataset, [some], what)[0] if by_name else some
            ids[what], names[what] = groups(own, what, len(y))
    return SampleArrays(x, y, ids["domain"], ids["user"]), names["domain"]


def _copied(samples: SampleArrays) -> SampleArrays:
    """Copy the samples, so that a later change of the user's arrays changes nothing here."""
    return replace(samples, x=samples.x.clone(), y=samples.y.clone())


def _without_share(samples: SampleArrays, share: float) -> tuple[SampleArrays, SampleArrays]:
    """Split off a `share` of the samples for test: with classes in proportion, and the same samples for every seed."""
    if isinstance(share, bool) or not 0 < share <= LARGEST_TEST_SHARE:
        raise InputError(f"data: test must be a share in (0, {LARGEST_TEST_SHARE}], a pair (x, y) or a dataset, "
                         f"got {share!r}")  # fmt: skip
    number = round(share * len(samples.y))
    if not 0 < number < len(samples.y):
        raise InputError(f"data: test = {share} of {len(samples.y)} samples leaves none for test or for training")
    chosen = in_proportion(samples.y, number)
    rest = np.setdiff1d(np.arange(len(samples.y)), chosen)
    return rows_of(samples, rest), rows_of(samples, chosen)


@cache
def own_dataset(name: str, read: Callable[[], Any]) -> BundledDataset:
    """Return the data set that the user's function `read` returns; `read` is called once per process.

    `read` returns training samples (x, y), or training and test samples, ((x, y), (x, y)), as arrays or tensors with
    x (n, *shape) and class indices or names of classes y (n,); or a `LoadedDataset`, which may have domains and users.

    Raises InputError, naming the data set, for anything else, and if `read` raises.
    """
    try:
        returned = read()
        loaded = returned if isinstance(returned, LoadedDataset) else _of_pairs(returned)
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"raises {type(error).__name__}: {error}"
        raise InputError(f"data.name = {printable(name)}: {printable(shortened(reason, 400))}") from error
    return BundledDataset(
        summary=f"what {portable(name)} returns",
        read=lambda: loaded,
        classes=loaded.classes,
        shape=tuple(loaded.train.x.shape[1:]),
        sizes=loaded.sizes,
        where=f"what {portable(name)} returns",
        domains=loaded.domains,
        vocabulary_size=len(loaded.vocabulary),
        task=loaded.task,
    )


def _of_pairs(returned: Any) -> LoadedDataset:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise InputError(f"returns {type(returned).__name__}, not (x, y), ((x, y), (x, y)) or a LoadedDataset")
    has_test = all(isinstance(part, tuple | list) and len(part) == 2 for part in returned)
    given = dict(zip(("training", "test"), returned if has_test else (returned,), strict=False))
    refuse_other_columns(given)
    # `loss` decides the task later.
    parts = {part: samples_and_labels(pair, f"the {part} part", task=None) for part, pair in given.items()}
    x = alike({part: x for part, (x, _) in parts.items()})
    y, names = named({part: y for part, (_, y) in parts.items()}, "label")
    samples = [SampleArrays(*pair) for pair in zip(x, y.values(), strict=True)]
    return LoadedDataset(samples[0], samples[1] if has_test else None, 0, class_names=names)

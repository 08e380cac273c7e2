"""A data set that a user's function returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ..core.errors import InputError, printable, shortened
from ..core.object_references import portable
from .arrays import refuse_other_columns, samples_and_labels
from .dataset import BundledDataset, LoadedDataset, SampleArrays
from .labels import named
from .numbers import alike


@cache
def own_dataset(name: str, read: Callable[[], Any]) -> BundledDataset:
    """The data set that `read` returns; it is called once in a process.

    It returns the training samples (x, y), or these and the test samples, ((x, y), (x, y)), as arrays or tensors with
    x (n, *shape) and class indices or names of classes y (n,); or a `LoadedDataset`, which may have domains and users.

    Raises InputError, naming the data set, for anything else, and if `read` raises.
    """
    try:
        returned = read()
        loaded = returned if isinstance(returned, LoadedDataset) else _of_pairs(returned)
    except Exception as error:
        reason = str(error) if isinstance(error, InputError) else f"raises {type(error).__name__}: {error}"
        raise InputError(f"data.name = {printable(name)}: {printable(shortened(reason, 400))}") from error
    parts = {"train": loaded.train} | ({} if loaded.test is None else {"test": loaded.test})
    return BundledDataset(
        lambda: loaded,
        classes=loaded.classes,
        shape=tuple(loaded.train.x.shape[1:]),
        sizes={part: len(samples.y) for part, samples in parts.items()},
        where=f"what {portable(name)} returns",
        domains=loaded.domains,
        vocabulary_size=len(loaded.vocabulary),
    )


def _of_pairs(returned: Any) -> LoadedDataset:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise InputError(f"returns {type(returned).__name__}, not (x, y), ((x, y), (x, y)) or a LoadedDataset")
    has_test = all(isinstance(part, tuple | list) and len(part) == 2 for part in returned)
    given = dict(zip(("training", "test"), returned if has_test else (returned,), strict=False))
    refuse_other_columns(given)
    # Regression has the labels of every task; `loss` says which one they are.
    parts = {part: samples_and_labels(pair, f"the {part} part", task="regression") for part, pair in given.items()}
    x = alike({part: x for part, (x, _) in parts.items()})
    y, names = named({part: y for part, (_, y) in parts.items()}, "label")
    samples = [SampleArrays(*pair) for pair in zip(x, y.values(), strict=True)]
    return LoadedDataset(samples[0], samples[1] if has_test else None, 0, class_names=names)

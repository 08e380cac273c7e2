"""A data set that a user's function returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError, printable, shortened
from ..core.object_references import portable
from .arrays import outputs_for, refuse_masks, tensors
from .dataset import BundledDataset, LoadedDataset, SampleArrays


@cache
def own_dataset(name: str, read: Callable[[], Any]) -> BundledDataset:
    """The data set that `read` returns; it is called once in a process.

    It returns the training samples (x, y), or these and the test samples, ((x, y), (x, y)), as arrays or tensors with
    x (n, *shape) and class indices y (n,); or a `LoadedDataset`, which may have domains and users too.

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
    parts: Any = returned if has_test else (returned,)
    samples = [_samples(part, f"the {name} part") for part, name in zip(parts, ("training", "test"), strict=False)]
    labels = [some.y for some in samples]
    classes = outputs_for("classification", labels) if all(map(_are_classes, labels)) else 0
    return LoadedDataset(samples[0], samples[1] if has_test else None, classes)


def _samples(pair: Any, who: str) -> SampleArrays:
    """Samples with class indices (n,), or with labels (n,) or (n, k) as they are, which `loss` says the meaning of."""
    refuse_masks(pair[1], who)
    y = torch.as_tensor(pair[1])
    if _are_classes(y):
        return SampleArrays(*tensors(pair, who))
    return SampleArrays(tensors(pair, who, "regression")[0], y)


def _are_classes(y: Tensor) -> bool:
    return y.ndim == 1 and (not y.is_floating_point() or torch.equal(y, y.round()))

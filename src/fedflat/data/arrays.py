"""Samples and labels as tensors, from the arrays and dataset objects that users have; no library of theirs is imported.

A dataset object is recognised by what it can do: one with `column_names` has columns and gives rows as dictionaries,
as Hugging Face's `datasets.Dataset` does; one with a length and numbered items (x, y) is map-style, as torch's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from ..core.errors import InputError, printable, shortened
from ..core.task import Kind
from .repeatability import warn_if_random

AXES: dict[Kind, tuple[int, ...]] = {"classification": (1,), "multi-label": (2,), "regression": (1, 2)}
Columns = tuple[str, str]  # the names of the samples' and the labels' columns


def tensors(pair: tuple[Any, Any], who: str, task: Kind = "classification") -> tuple[Tensor, Tensor]:
    """Samples and labels as tensors. Raises InputError, naming `who`, for a pair that does not fit together."""
    try:
        x, y = pair
        refuse_masks(y, who)
        x, y = stacked(x, who) if _are_pictures(x) else torch.as_tensor(x), torch.as_tensor(y)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"data: {who} must be a pair (x, y) of arrays: {_first_line(error)}") from error
    if task == "classification" and y.is_floating_point() and not torch.equal(y, y.round()):
        raise InputError(f"data: {who} has labels that are not whole numbers; numbers to predict need "
                         "task='regression' (--loss regression)")  # fmt: skip
    shapes = {"classification": "(n,)", "multi-label": "(n, labels)", "regression": "(n,) or (n, k)"}
    if y.ndim not in AXES[task] or x.ndim < 2 or len(x) != len(y):
        raise InputError(f"data: {who} has x of shape {tuple(x.shape)} and y of shape {tuple(y.shape)}; "
                         f"expected (n, ...) and {shapes[task]}")  # fmt: skip
    if not len(y):
        raise InputError(f"data: {who} has no sample")
    return x, labels_for(task, y)


def labels_for(task: Kind, y: Tensor) -> Tensor:
    """Labels (n,) or (n, k) as a task stores them: class indices int64 (n,), or floats (n, k)."""
    if task == "classification":
        return y.long()
    return (y if y.is_floating_point() else y.to(torch.get_default_dtype())).view(len(y), -1)


def outputs_for(task: Kind, labels: Sequence[Tensor]) -> int:
    """How many scores a model has to give, for stored labels: as many as classes, or as a sample has labels."""
    if task == "classification":
        return max(1, *(int(y.max()) + 1 for y in labels))
    return labels[0].shape[1]


def has_columns(dataset: Any) -> bool:
    """Whether `dataset` gives its rows as dictionaries."""
    return hasattr(dataset, "column_names")


def read_columns(dataset: Any, names: Sequence[str], who: str) -> list[list[Any]]:
    """The values of some columns, in the order of the rows. Raises InputError for a column that is not there."""
    known = dataset.column_names
    if isinstance(known, dict):
        raise InputError(f"data: {who} has several parts ({_listed(known)}); give one, such as dataset['train']")
    if not hasattr(dataset, "__len__"):
        raise InputError(f"data: {who} is a stream; give a dataset that has a length")
    for name in names:
        if name not in known:
            raise InputError(f"data: {who} has no column {name!r}; its columns are {_listed(known)}")
    rows = [[row[name] for name in names] for row in dataset]
    warn_if_random(lambda i: [dataset[i][name] for name in names], rows, who)
    return [[row[i] for row in rows] for i in range(len(names))]


def read_items(dataset: Any, who: str) -> tuple[list[Any], list[Any]]:
    """The samples and the labels of a map-style dataset. Raises InputError if it is none, or an item is no pair."""
    if isinstance(dataset, np.ndarray | Tensor):
        raise InputError(f"data: {who} has x of shape {tuple(dataset.shape)} and no y; give the labels, too")
    if isinstance(dataset, str | dict | IterableDataset) or not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    ):
        raise InputError(f"data: {who} must be a pair (x, y) of arrays, or a dataset with a length and items (x, y), "
                         f"got {type(dataset).__name__}")  # fmt: skip
    samples, labels = [], []
    for i in range(len(dataset)):
        item = dataset[i]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise InputError(f"data: {who}: item {i} must be a pair (x, y), got {type(item).__name__}")
        samples.append(item[0])
        labels.append(item[1])
    warn_if_random(dataset.__getitem__, list(zip(samples, labels, strict=True)), who)
    return samples, labels


def stacked(samples: Sequence[Any], who: str) -> Tensor:
    """The samples one below the other; pictures of Pillow have their channels first.

    Raises InputError, naming `who` and the number of the sample, if one is no array or has another shape.
    """
    found: list[Tensor] = []
    for i, sample in enumerate(samples):
        try:
            picture = hasattr(sample, "getbands")
            found.append(torch.as_tensor(_pixels(sample, f"data: {who}: sample {i}") if picture else sample))
        except InputError:
            raise
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"data: {who}: sample {i} is {_kind(sample)}, expected numbers or a picture; texts have "
                             "to become token numbers first") from error  # fmt: skip
        if found[i].shape != found[0].shape:
            raise InputError(f"data: {who}: sample {i} has shape {tuple(found[i].shape)}, sample 0 has "
                             f"{tuple(found[0].shape)}; make all samples one size, and pictures all grey or all "
                             "coloured")  # fmt: skip
    return torch.stack(found) if found else torch.empty(0, 1)


def groups(values: Any, what: str, number: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], tuple[str, ...]]:
    """The domain or the user of each of `number` samples as numbers, and their names in the order of the numbers.

    Raises InputError, naming `what`, for another number of values, or a name that is not printable.
    """
    try:
        names, ids = np.unique(np.asarray(values), return_inverse=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"data: {what} must have one name or number for each sample: {_first_line(error)}") from error
    if ids.shape != (number,) or np.asarray(values).shape != (number,):
        shape = np.asarray(values).shape
        raise InputError(f"data: {what} must have one name or number for each of the {number} samples, has {shape}")
    texts = tuple(map(str, names.tolist()))
    for text in texts:
        if printable(text) != text:
            raise InputError(f"data: a {what} is named {printable(text[:100])!r}; names must be printable")
    return ids.astype(np.int64), texts


def refuse_masks(y: Any, who: str) -> None:
    """Raise InputError, naming `who`, if labels are pictures."""
    if _are_pictures(y):
        raise InputError(f"data: {who} has pictures as labels (masks); a task is one of {', '.join(AXES)}")


def _are_pictures(part: Any) -> bool:
    """Whether a sequence holds pictures of Pillow."""
    return isinstance(part, list | tuple) and bool(part) and hasattr(part[0], "getbands")


def _pixels(picture: Any, what: str) -> np.ndarray[Any, Any]:
    """The pixels of a picture of Pillow, uint8 (1 or 3, height, width)."""
    from .readers.pictures import pixels  # here, because it imports Pillow

    return pixels(picture, what)


def _kind(value: Any) -> str:
    return "a text" if isinstance(value, str) else f"of type {type(value).__name__}"


def _listed(names: Any) -> str:
    return shortened(printable(", ".join(map(str, names))))


def _first_line(error: Exception) -> str:
    return shortened(printable((str(error).splitlines() or [type(error).__name__])[0]))

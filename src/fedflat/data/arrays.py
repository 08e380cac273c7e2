"""Samples and labels as tensors, from users' arrays and dataset objects, whose libraries are not imported.

A dataset object is recognised by its attributes. An object with `column_names` has columns and gives rows as
dictionaries, as Hugging Face's `datasets.Dataset` does. An object with a length and numbered items (x, y) is map-style,
as the datasets of torch are.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from ..core.errors import InputError, printable, shortened
from ..core.task import FORMS, Kind
from .labels import Labelling, named, numbered, raw_labels, task_labels, values_of
from .numbers import Array, alike, check_kind, is_table, sample_tensor
from .types import Index

# A check for random transforms reads 33 to 64 items again, or all if there are fewer. A transform that changes one item
# in ten is missed about once in 600 checks.
ITEMS = 64
Columns = tuple[str, str]  # the names of the samples' and the labels' columns


def samples_and_labels(
    data: Any, who: str, columns: Columns | None = None, task: Kind | None = "classification"
) -> tuple[Tensor, Array]:
    """Return the samples of `data`, a pair (x, y) or a dataset, and their labels as texts or numbers.

    task: None if it is not known yet.

    Raises InputError, which calls the data `who`, for other data, and if samples and labels do not fit each other.
    """
    x, y = pair_of(data, who, columns)
    if isinstance(y, list | tuple) and y and hasattr(y[0], "getbands"):
        if task not in ("segmentation", None):
            raise InputError(f"data: {who} has pictures as labels (masks); these are for task='segmentation'")
        y = stacked([np.asarray(mask) for mask in y], f"{who}: masks").numpy()
    refuse_other_order(x, y, who)
    several = isinstance(x, list | tuple) and len(x) > 0 and not isinstance(x[0], list | tuple | Number)
    samples = stacked(x, who) if several else sample_tensor(x, f"data: {who} x")
    labels = raw_labels(y, f"data: {who} label")
    check_shapes(samples.shape, labels.shape, who, task)
    return samples, labels


def check_shapes(x: tuple[int, ...], y: tuple[int, ...], who: str, task: Kind | None) -> None:
    """Raise InputError, naming `who`, unless the shapes `x` of samples and `y` of labels fit each other and `task`."""
    if y and not y[0]:
        raise InputError(f"data: {who} has no sample")
    forms = list(FORMS.values()) if task is None else [FORMS[task]]
    if not any(len(y) in form.axes for form in forms) or len(x) < 2 or x[0] != y[0]:
        raise InputError(f"data: {who} has x of shape {tuple(x)} and y of shape {tuple(y)}; "
                         f"expected (n, ...) and {' or '.join(form.shape for form in forms)}")  # fmt: skip
    if 0 in x:
        raise InputError(f"data: {who} has samples without numbers, of shape {tuple(x[1:])}")


def refuse_other_shapes(parts: Mapping[str, tuple[Tensor, Array]]) -> None:
    """Raise InputError, naming two parts, if samples (n, *shape) or labels (n, *label) differ in `shape` or `label`."""
    first = next(iter(parts))
    for part, pair in parts.items():
        for place, what in enumerate(("samples", "labels")):
            shape, expected = (tuple(some[place].shape[1:]) for some in (pair, parts[first]))
            if shape != expected:
                raise InputError(f"data: {part} has {what} of shape {shape}, {first} of shape {expected}")


def stored_parts(
    parts: Mapping[str, tuple[Tensor, Array]], task: Kind, how: Labelling
) -> tuple[dict[str, tuple[Tensor, Tensor]], int, tuple[str, ...]]:
    """Convert the samples and labels of several parts to the stored form.

    Return the converted pairs by part, the number of model outputs, and the names of classes. Raises InputError, naming
    the part, if parts differ in the kind of their numbers or labels, and as `task_labels` does.
    """
    refuse_other_shapes(parts)
    x = alike({part: x for part, (x, _) in parts.items()})
    codes, found = named({part: y for part, (_, y) in parts.items()}, "label")
    y, outputs, names = task_labels(codes, found, task, how)
    return dict(zip(parts, zip(x, y.values(), strict=True), strict=True)), outputs, names


def pair_of(data: Any, who: str, columns: Columns | None = None) -> tuple[Any, Any]:
    """Return the samples and the labels of a pair, of a dataset with columns, or of a map-style dataset."""
    if has_columns(data):
        if not (isinstance(columns, tuple | list) and len(columns) == 2):
            raise InputError(f"data: say which columns of {who} hold x and y, as columns=('image', 'label'); it has "
                             f"{_listed(data.column_names)}")  # fmt: skip
        x, y = read_columns(data, columns, who)
        return x, y
    if isinstance(data, tuple | list) and len(data) == 2 and not all(map(_is_item, data)):
        return data[0], data[1]
    return read_items(data, who)


def refuse_other_order(x: Any, y: Any, who: str) -> None:
    """Raise InputError if tables x and y have equal row labels in different orders, as when only one was shuffled."""
    one, other = (getattr(part, "index", None) if hasattr(part, "to_numpy") else None for part in (x, y))
    if one is None or other is None or len(one) != len(other) or list(one) == list(other):
        return
    if set(one) == set(other):
        raise InputError(f"data: {who} has x and y whose rows have the same index in another order; give them in one "
                         "order: y.loc[x.index]")  # fmt: skip


def refuse_other_columns(given: Mapping[str, Any]) -> None:
    """Raise InputError if the samples of two parts are tables with different named columns, or another order of them.

    Tables whose columns are numbered from 0 have no names.
    """
    pairs = {part: pair for part, pair in given.items() if isinstance(pair, tuple | list) and len(pair) == 2}
    columns = {part: list(x.columns) for part, (x, _) in pairs.items() if is_table(x)}
    named = {part: some for part, some in columns.items() if some != list(range(len(some)))}
    for part, some in named.items():
        other, expected = next(iter(named.items()))
        if some != expected:
            raise InputError(f"data: {part} has the columns {_listed(some)}, {other} {_listed(expected)}; give all the "
                             "same in one order: frame[columns]")  # fmt: skip


def _is_item(part: Any) -> bool:
    """Return whether `part` is a pair (sample, label): two such pairs are a dataset, not the arrays x and y."""
    if isinstance(part, tuple) and len(part) == 2 and all(hasattr(one, "getbands") for one in part):
        return True  # a picture and its mask
    return isinstance(part, tuple | list) and len(part) == 2 and not _axes(part[1]) and bool(_axes(part[0]))


def _axes(value: Any) -> int:
    """Return the number of dimensions: 0 for a number or a text, 1 for a list or a picture."""
    return 1 if isinstance(value, list | tuple) or hasattr(value, "getbands") else getattr(value, "ndim", 0)


def has_columns(dataset: Any) -> bool:
    """Return whether `dataset` yields its rows as dictionaries."""
    return hasattr(dataset, "column_names")


def read_columns(dataset: Any, names: Sequence[str], who: str) -> list[list[Any]]:
    """Return one list of values for each of the columns `names`. Raises InputError for a column that does not exist."""
    known = dataset.column_names
    if isinstance(known, dict):
        raise InputError(f"data: {who} has several parts ({_listed(known)}); give one, such as dataset['train']")
    if not hasattr(dataset, "__len__"):
        raise InputError(f"data: {who} is a stream; give a dataset that has a length")
    for name in names:
        if name not in known:
            raise InputError(f"data: {who} has no column {name!r}; its columns are {_listed(known)}")
    rows = [[row[name] for name in names] for row in getattr(dataset, "to_pylist", lambda: dataset)()]
    if not hasattr(dataset, "to_pylist"):
        warn_if_random(lambda i: [dataset[i][name] for name in names], rows, who)
    return [[row[i] for row in rows] for i in range(len(names))]


def read_items(dataset: Any, who: str) -> tuple[list[Any], list[Any]]:
    """Read samples and labels of a map-style dataset. Raises InputError for other data, or an item that is no pair."""
    if isinstance(dataset, np.ndarray | Tensor):
        raise InputError(f"data: {who} has x of shape {tuple(dataset.shape)} and no y; give the labels, too")
    if hasattr(dataset, "dataset") and hasattr(dataset, "collate_fn"):
        raise InputError(f"data: {who} is a DataLoader, which may leave samples out and mix them; give its dataset "
                         "(loader.dataset), or the Subset that its sampler draws from")  # fmt: skip
    if is_table(dataset):
        raise InputError(f"data: {who} is a table and no y; give (frame[columns], frame[label])")
    if isinstance(dataset, tuple):
        raise InputError(f"data: {who} must be a pair (x, y) of arrays, got {len(dataset)} parts")
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
    """Stack the samples along a new first axis; a picture of Pillow becomes an array with the channels first.

    Raises InputError, naming `who` and the number of the sample, if a sample is no array, or its shape or
    kind of numbers differs from that of the first sample.
    """
    found: list[Tensor] = []
    for i, sample in enumerate(samples):
        what = f"data: {who}: sample {i}"
        found.append(sample_tensor(_pixels(sample, what) if hasattr(sample, "getbands") else sample, what))
        if found[i].shape != found[0].shape:
            raise InputError(f"{what} has shape {tuple(found[i].shape)}, sample 0 has "
                             f"{tuple(found[0].shape)}; make all samples one size, and pictures all grey or all "
                             "coloured")  # fmt: skip
        check_kind(f"{who}: sample {i}", found[i], "sample 0", found[0])
    return torch.stack(alike({f"sample {i}": sample for i, sample in enumerate(found)})) if found else torch.empty(0, 1)


def groups(values: Any, what: str, number: int) -> tuple[Index, tuple[str, ...]]:
    """Return the domain or user of each of `number` samples as an id, and the names in the order of the ids.

    Raises InputError, naming `what`, for another number of values, or a name that is not printable.
    """
    found = values_of(values, f"data: {what}")
    if found.shape != (number,):
        raise InputError(f"data: {what} must have one name or number for each of the {number} samples, "
                         f"has {found.shape}")  # fmt: skip
    ids, names = numbered({what: found.tolist()}, what)
    return ids[what], names


def _pixels(picture: Any, what: str) -> np.ndarray[Any, Any]:
    """Return the pixels of a picture of Pillow, uint8 (1 or 3, height, width)."""
    from .readers.pictures import pixels  # here, because it imports Pillow

    return pixels(picture, what)


def _listed(names: Any) -> str:
    return shortened(printable(", ".join(map(str, names))))


def warn_if_random(read: Callable[[int], Sequence[Any]], items: Sequence[Sequence[Any]], who: str) -> None:
    """Read some of the `items` again by `read`, and warn, naming `who`, if an item has changed.

    A dataset is read only once, so after a random transform the samples would be the same in every epoch. The states
    of random generators are restored.
    """
    with _kept_random_states():
        for i in range(0, len(items), -(-len(items) // ITEMS) or 1):
            if _differs(items[i], read, i, f"data: {who}: sample {i}"):
                warnings.warn(f"data: {who}: sample {i} is another one when it is read again; a dataset is read once, "
                              "and a random transform would be the same in every epoch: leave it out; for pictures "
                              "there is augment='crop-flip'", stacklevel=2)  # fmt: skip
                return


def _differs(item: Sequence[Any], read: Callable[[int], Sequence[Any]], i: int, what: str) -> bool:
    try:
        (one, other), *labels = zip(item, read(i), strict=True)
        return not _same(one, other, what) or not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in labels)
    except InputError:
        raise
    except Exception:  # values that cannot be compared are refused later, if they cannot be converted either
        return False


def _same(one: Any, other: Any, what: str) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if hasattr(one, "getbands") and hasattr(other, "getbands"):
        one, other = _pixels(one, what), _pixels(other, what)
    return np.array_equal(np.asarray(one), np.asarray(other))


@contextmanager
def _kept_random_states() -> Iterator[None]:
    """Restore the states of the generators of `random`, numpy and torch (on the CPU) after the block."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)

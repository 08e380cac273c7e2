"""Labels, domains and users: one name or integer for each sample, and the class indices of the labels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import InputError, printable, shortened
from ..core.registry import known_names
from ..core.task import FORMS, KINDS, Kind
from .numbers import Array, array_of, stored

MISSING = ("", "nan", "NaN", "<NA>", "NaT")  # texts that a missing value becomes in a column of texts
MAX_NAME = 200  # characters of a class's, a domain's or a user's name, which tables and messages show
MAX_CLASSES = 100_000  # ImageNet-21k has 21,841, and tables have a column for each
EXACT = 2**53  # above it a float64 cannot hold every integer
Values = NDArray[np.int64] | NDArray[np.str_]


@dataclass(frozen=True)
class Labelling:
    """The mapping of labels to class indices. `class_names`: all classes in order; empty: the classes that occur."""

    labels: Literal["numbers", "names"] = "numbers"
    class_names: tuple[str, ...] = ()
    classes: int | None = None  # number of classes, if the user states it


INDICES = Labelling()


def checked_task(task: Any) -> Kind:
    """Return `task`. Raises InputError unless it is the name of a task."""
    if task not in KINDS:
        raise InputError(f"data: task = {task!r} is unknown; {known_names(task, KINDS)}")
    known: Kind = task
    return known


def values_of(values: Any, what: str) -> Values:
    """Convert `values` to one integer (int64) or one text per sample, (n,); integral floats and bools become integers.

    Raises InputError, beginning with `what`, for anything else, for texts among numbers, and for a missing value.
    """
    found = raw_labels(values, what)
    return found if found.dtype.kind == "U" else _whole(found, what)


def raw_labels(values: Any, what: str) -> Array:
    """Convert labels of any task to texts (n,) or numbers of any shape. Raises InputError as `values_of` does."""
    try:
        values = values.to_numpy() if hasattr(values, "to_numpy") else values
    except (TypeError, ValueError) as error:  # pyarrow copies texts only when asked
        raise InputError(f"{what} is no array of NumPy; give a list") from error
    if isinstance(values, list | tuple) or (isinstance(values, np.ndarray) and values.dtype.kind == "O"):
        found = _one_by_one(values, what)
        return _of_objects(found, what) if found.dtype.kind == "O" else found
    return array_of(values, what)


def task_labels(
    labels: Mapping[str, Tensor], found: tuple[str, ...], task: Kind, how: Labelling
) -> tuple[dict[str, Tensor], int, tuple[str, ...]]:
    """Convert the labels of every part to the form of `task`: class indices int64 (n, ...), or floats (n, k).

    Return the converted labels by part, the number of model outputs, and the names of classes, if any. Raises
    InputError, naming the part, for labels that the task cannot have.

    labels: the labels of every part, as numbers.
    found: if labels are texts, the sorted list of texts (`labels` are indices into it); else empty.
    """
    if task == "classification":
        whole = {part: y if found else torch.from_numpy(_whole(y.numpy(), f"data: {part} label"))
                 for part, y in labels.items()}  # fmt: skip
        return class_indices(whole, found, how)
    if FORMS[task].has_positions:
        return _classes_of_positions(labels, found, task, how)
    if found or how.labels == "names" or how.class_names:
        raise InputError(f"data: names of classes go with classification; for {task} labels are numbers")
    numbers = {part: (y if y.is_floating_point() else y.to(torch.get_default_dtype())).view(len(y), -1)
               for part, y in labels.items()}  # fmt: skip
    outputs = next(iter(numbers.values())).shape[1]
    return numbers, outputs if how.classes is None else how.classes, ()


def _classes_of_positions(
    labels: Mapping[str, Tensor], found: tuple[str, ...], task: Kind, how: Labelling
) -> tuple[dict[str, Tensor], int, tuple[str, ...]]:
    """Return class indices, int64 (n, *positions), of every part, the number of classes, and their stated names."""
    if found or how.labels == "names":
        raise InputError(f"data: labels of {task} are whole numbers from 0, not names")
    checked_names(how.class_names, "class")
    whole = {part: torch.from_numpy(_whole(y.numpy(), f"data: {part} label")) for part, y in labels.items()}
    classes = how.classes or len(how.class_names) or max(1, 1 + max(int(y.max()) for y in whole.values()))
    _check_number(classes)
    return whole, classes, how.class_names


def named(values: Mapping[str, Array], what: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Convert the values of several parts to tensors; texts become indices into the sorted list of all texts.

    Return the tensors by part, and the list, which is empty for numbers.

    Raises InputError if one part has texts and another numbers, and for names that do not fit into a table.
    """
    first = next(iter(values))
    for part, some in values.items():
        if some.dtype.kind != values[first].dtype.kind:
            kinds = ["texts" if one.dtype.kind == "U" else "numbers" for one in (some, values[first])]
            raise InputError(f"data: {part} has {what}s that are {kinds[0]}, {first} {kinds[1]}; give all the same")
    if values[first].dtype.kind != "U":
        return {part: torch.from_numpy(stored(some, f"data: {part} {what}")) for part, some in values.items()}, ()
    names = np.unique(np.concatenate([np.unique(some) for some in values.values()]))
    checked_names(tuple(names.tolist()), what)
    codes = {part: torch.from_numpy(np.searchsorted(names, some)) for part, some in values.items()}
    return codes, tuple(names.tolist())


def numbered(
    values: Mapping[str, Sequence[str | int]], what: str
) -> tuple[dict[str, NDArray[np.int64]], tuple[str, ...]]:
    """Convert the domains or users of several parts to ids, (n,) for each part, and return the name of every id.

    Ids are in the order of the names. Raises InputError if one part has texts and another numbers, and for names
    that do not fit into a table.
    """
    different = {name for column in values.values() for name in column}
    if len({isinstance(name, str) for name in different}) > 1:
        raise InputError(f"data: {what} has texts in one file and numbers in another; give all the same")
    number = {name: i for i, name in enumerate(sorted(different))}
    names = tuple(map(str, number))
    checked_names(names, what)
    return {part: np.array([number[name] for name in column], dtype=np.int64) for part, column in values.items()}, names


def checked_names(names: tuple[str, ...], what: str) -> None:
    """Raise InputError for a name that is missing, long, not printable, or given twice (ignoring outer spaces)."""
    seen: dict[str, str] = {}
    for name in names:
        if name.strip() in MISSING:
            raise InputError(f"data: a {what} is missing: {name!r}")
        if len(name) > MAX_NAME or printable(name) != name:
            raise InputError(f"data: a {what} is named {printable(name[:MAX_NAME])!r}; names are printable and short")
        if name.strip() in seen:
            raise InputError(f"data: the same {what} is named {seen[name.strip()]!r} and {name!r}")
        seen[name.strip()] = name


def class_indices(
    labels: Mapping[str, Tensor], found: tuple[str, ...], how: Labelling
) -> tuple[dict[str, Tensor], int, tuple[str, ...]]:
    """Return class indices, int64 (n,), of every part, the number of classes, and their names if they have any.

    labels: integers (n,) of every part.
    found: if labels are texts, the sorted list of texts (`labels` are indices into it); else empty.

    Raises InputError for a label that is none of the given names. If no classes are given, raises InputError for a
    negative class index and for a class that only the part "test" has, and warns of classes without samples.
    """
    if how.classes is not None and how.class_names and how.classes != len(how.class_names):
        raise InputError(f"data: classes = {how.classes}, and class_names has {len(how.class_names)} names")
    checked_names(how.class_names, "class")
    if found or how.labels == "names" or _are_other_numbers(how.class_names):
        return _by_name(labels, found, how)
    classes = how.classes if how.classes is not None else len(how.class_names) or _numbered(labels)
    return {part: y.long() for part, y in labels.items()}, classes, how.class_names


def _are_other_numbers(names: tuple[str, ...]) -> bool:
    """Return whether all names are whole numbers and not class indices: labels are then names, such as 1, 2 and 3."""
    indices = [str(i) for i in range(len(names))]
    return bool(names) and list(names) != indices and all(name.removeprefix("-").isdecimal() for name in names)


def _by_name(
    labels: Mapping[str, Tensor], found: tuple[str, ...], how: Labelling
) -> tuple[dict[str, Tensor], int, tuple[str, ...]]:
    """Return the same as `class_indices`, for classes that have names.

    Each different label is a class. Classes are in the order of the given names, or else of the labels.
    """
    occurring = {part: torch.unique(y).tolist() for part, y in labels.items()}
    text = {value: found[value] if found else str(value) for some in occurring.values() for value in some}
    names = how.class_names or tuple(text[value] for value in sorted(_trained(occurring)))
    number = {name: i for i, name in enumerate(names)}
    for part, some in occurring.items():
        for value in some:
            if text[value] not in number:
                where = "class_names" if how.class_names else "the training labels; class_names states all classes"
                raise InputError(f"data: {part} has the label {text[value]!r}, which is none of {where}")
    if how.classes not in (None, len(names)):
        raise InputError(f"data: classes = {how.classes}, and the labels are {len(names)} names; "
                         "state all classes as class_names")  # fmt: skip
    _check_number(len(names))
    values = torch.tensor(sorted(text))
    indices = torch.tensor([number[text[value]] for value in sorted(text)])
    return {part: indices[torch.searchsorted(values, y)] for part, y in labels.items()}, len(names), names


def _numbered(labels: Mapping[str, Tensor]) -> int:
    """Return the number of classes if labels are class indices: the largest index plus one.

    Raises InputError for negative labels, and for a class that only test samples have. Warns of classes without
    samples.
    """
    for part, y in labels.items():
        if (smallest := int(y.min())) < 0:
            place = int(torch.nonzero(y == smallest)[0])
            raise InputError(f"data: {part} label {smallest} of sample {place} is negative; classes are "
                             "numbered from 0: leave out samples without a label, or give labels='names'")  # fmt: skip
    classes = 1 + max(int(y.max()) for y in labels.values())
    _check_number(classes)
    occurring = {part: torch.unique(y).tolist() for part, y in labels.items()}
    every = sorted({label for some in occurring.values() for label in some})
    if only := set(every) - _trained(occurring):
        raise InputError(f"data: class {min(only)} has samples for test and none for training; if that is right, state "
                         "all classes as class_names")  # fmt: skip
    if missing := classes - len(every):
        few = ", ".join(map(str, every[:6])) + ", ..." * (len(every) > 6)
        warnings.warn(f"data: labels are {few}, which leaves {missing} of {classes} classes without a sample; labels="
                      "'names' makes those that occur the classes, class_names states all", stacklevel=2)  # fmt: skip
    return classes


def _trained(occurring: Mapping[str, list[int]]) -> set[int]:
    """Return the labels that occur in training: in all parts except "test", or in "test" if it is the only part."""
    return {label for part, some in occurring.items() if part != "test" or len(occurring) == 1 for label in some}


def _check_number(classes: int) -> None:
    if classes > MAX_CLASSES:
        raise InputError(f"data: labels make {classes:,} classes, at most {MAX_CLASSES:,} are taken; labels="
                         "'names' takes those that occur, and numbers to predict need task='regression'")  # fmt: skip


def _one_by_one(values: Any, what: str) -> Array:
    """Convert a sequence to an array of objects, one for each item, (n,); convert a nested sequence as NumPy does."""
    if (
        np.ndim(values) != 1
        if isinstance(values, np.ndarray)
        else any(not isinstance(value, str | Real) and np.ndim(value) > 0 for value in values)
    ):
        return array_of(values, what)
    found = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        found[i] = value.item() if hasattr(value, "item") else value
    return found


def _of_objects(found: Array, what: str) -> Array:
    """Convert objects (n,) to texts or numbers. Raises InputError, naming the sample, for others, and for a mixture."""
    values = found.ravel().tolist()
    for i, value in enumerate(values):
        if not isinstance(value, str | Real) or (isinstance(value, float) and isnan(value)):
            raise InputError(f"{what} of sample {i} is missing or no name: {printable(shortened(repr(value), 40))}")
        if isinstance(value, str) != isinstance(values[0], str):
            raise InputError(f"{what} of sample {i} is {printable(shortened(repr(value), 40))}, and that of sample 0 "
                             f"{printable(shortened(repr(values[0]), 40))}: texts and numbers are mixed")  # fmt: skip
    kind = np.str_ if values and isinstance(values[0], str) else None
    return np.asarray(values, dtype=kind).reshape(found.shape)


def _whole(found: Array, what: str) -> NDArray[np.int64]:
    """Convert whole numbers to int64. Raises InputError for other values, and for floats too large to be exact."""
    kind = found.dtype.kind
    if kind not in "biuf":
        raise InputError(f"{what} is of type {found.dtype}; give names as texts, or whole numbers")
    if kind == "f" and len(missing := np.argwhere(np.isnan(found))):
        raise InputError(f"{what} of sample {missing[0][0]} is missing (NaN)")
    if kind == "f" and not (np.isfinite(found).all() and (found == found.round()).all()):
        raise InputError(f"{what}s are not whole numbers; numbers to predict need task='regression' "
                         "(--loss regression)")  # fmt: skip
    limit = EXACT if kind == "f" else np.iinfo(np.int64).max
    if kind in "uf" and found.size and int(np.abs(found).max()) > limit:
        raise InputError(f"{what}s are beyond {limit:,}; give ids of that size as texts")
    return found.astype(np.int64)

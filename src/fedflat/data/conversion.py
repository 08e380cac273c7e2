"""Writing the parts that a reader gives as arrays of a cache entry; texts become rows of token numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError
from ..core.progress import Progress
from .cache import Writer
from .labels import checked_names, named
from .readers.layout import Part, Shape
from .sample_format import LENGTH, SampleFormat

PADDING, UNKNOWN = "<pad>", "<unk>"  # numbers 0 and 1
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


def write_labels(writer: Writer, what: str, part: str, content: Part, classes: int) -> None:
    """Write the class indices of a part. Raises InputError for one outside 0..classes - 1, or if there is none."""
    labels = content.labels
    if not len(labels):
        raise InputError(f"data: {what} has no samples")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(f"data: {what} sample {wrong[0]} has class {labels[wrong[0]]}, outside 0..{classes - 1}")
    writer.add(f"{part}-y", labels.astype(np.int64))


def write_own_labels(writer: Writer, parts: Mapping[str, Part]) -> None:
    """Write the labels of a user's own files as they are; texts as numbers in their order, whose names are kept.

    Where files declare the names of class numbers, their count is the number of classes. Raises InputError
    for other numbers, and for parts of which one has texts and another numbers.
    """
    labels, names = named({part: content.labels for part, content in parts.items()}, "label")
    declared = {content.class_names for content in parts.values()}
    if len(declared) > 1:
        raise InputError("data: train and test files declare other names of classes")
    writer.metadata["class_names"] = list(names) or list(*declared)
    writer.metadata["classes"] = len(*declared)
    for part, content in parts.items():
        if content.labels.dtype.kind == "f" and not (content.labels.size and np.isfinite(content.labels).all()):
            raise InputError(f"data: {part} y holds NaN or infinity, or nothing")
        if writer.metadata["classes"]:
            write_labels(writer, part, part, content, writer.metadata["classes"])
        else:
            writer.add(f"{part}-y", labels[part].numpy())


def write_pictures(writer: Writer, part: str, content: Part, shape: Shape, progress: Progress) -> None:
    """Write the pictures of a part one after another into one array on disk."""
    total = len(content.labels)
    array = writer.create(f"{part}-x", (total, shape.channels, shape.size, shape.size), np.uint8)
    done = 0
    for done, picture in enumerate(content.samples, start=1):
        array[done - 1] = picture
        if done % 1000 == 0 or done == total:
            progress(part, done, total)
    if done != total:
        raise InputError(f"data: {part} has {total} labels but {done} pictures")
    array.flush()


def write_texts(writer: Writer, parts: Mapping[str, Part], size: int, form: SampleFormat) -> None:
    """Write the token numbers of all parts: those of a tokenizer, or of a vocabulary made of the training texts."""
    texts = {part: list(content.samples) for part, content in parts.items()}
    if form.tokenizer is not None:
        for part, some in texts.items():
            writer.add(f"{part}-x", form.tokenizer.encode(some, form.length))
        return
    vocabulary = build_vocabulary(texts["train"], size)
    for part, some in texts.items():
        writer.add(f"{part}-x", encode(some, vocabulary, form.length))
    writer.metadata["vocabulary"] = vocabulary


def words(text: str) -> list[str]:
    """The words of `text` in lower case: letters and digits, with at most one apostrophe inside."""
    return WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """Padding, unknown, and the most frequent words of `texts`, at most `size` in all; ties in alphabetical order."""
    counts = Counter(word for text in texts for word in words(text))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    return (PADDING, UNKNOWN, *frequent[: size - 2])


def encode(texts: Sequence[str], vocabulary: Sequence[str], length: int = LENGTH) -> NDArray[np.int16]:
    """Token numbers (n, length) of `texts`; words that are not in `vocabulary` are number 1."""
    number = {word: i for i, word in enumerate(vocabulary)}
    rows = np.zeros((len(texts), length), dtype=np.int16)
    for row, text in zip(rows, texts, strict=True):
        tokens = [number.get(word, 1) for word in words(text)[:length]]
        row[: len(tokens)] = tokens
    return rows


def write_groups(writer: Writer, parts: Mapping[str, Part]) -> None:
    """Write domains and users as numbers in the order of their names, the same numbers in all parts that have them.

    A test set may have none: it is shared. Raises InputError for names that are not fit for a table.
    """
    for group in ("domain", "user"):
        columns = {part: column for part, content in parts.items() if (column := getattr(content, group)) is not None}
        if "train" not in columns:
            continue
        different = {name for column in columns.values() for name in column}
        if len({isinstance(name, str) for name in different}) > 1:
            raise InputError(f"data: {group} has texts in one file and numbers in another; give all the same")
        names = sorted(different)
        checked_names(tuple(map(str, names)), group)
        number = {name: i for i, name in enumerate(names)}
        writer.metadata[f"{group}s"] = list(map(str, names))
        for part, column in columns.items():
            writer.add(f"{part}-{group}", np.array([number[name] for name in column], dtype=np.int64))

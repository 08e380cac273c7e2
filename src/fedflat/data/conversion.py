"""Conversion of the parts that a reader gives to the arrays of a cache entry, in the form that users choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..core.errors import InputError
from ..core.progress import Progress
from .cache import Writer
from .labels import named, numbered
from .readers.layouts import Part, Shape
from .texts import LENGTH, Tokenizer, build_vocabulary, encode


@dataclass(frozen=True)
class SampleFormat:
    """The form in which samples are stored: size of photographs, length and tokenizer of texts; None is the default."""

    image_size: int | None = None  # pixels that photographs are resized to
    text_length: int | None = None  # tokens; longer texts are cut, shorter ones padded
    tokenizer: Tokenizer | None = None  # makes the token numbers of texts

    @property
    def length(self) -> int:
        """Number of tokens of a text."""
        return self.text_length or LENGTH

    @property
    def text_key(self) -> tuple[object, ...]:
        """Part of the key of converted texts in the cache, beside their length."""
        return () if self.tokenizer is None else (self.tokenizer.digest, self.tokenizer.padding)

    def refuse_image_size(self, why: str) -> None:
        """Raise InputError if an image size is given; `why`, the end of the message, states the kind of the samples."""
        if self.image_size is not None:
            raise InputError(f"data.image_size = {self.image_size} goes with photographs{why}")

    def refuse_text_options(self) -> None:
        """Raise InputError if an option for texts is given: the samples are not texts."""
        if self.tokenizer is not None:
            raise InputError("data.tokenizer goes with texts, and this set has none; leave it out")
        if self.text_length is not None:
            raise InputError(
                f"data.text_length = {self.text_length} goes with texts, and this set has none; leave it out"
            )


OWN_FORMAT = SampleFormat()  # the default of a set


def write_labels(writer: Writer, what: str, part: str, content: Part, classes: int) -> None:
    """Write the class indices of a part. Raises InputError for an empty part, and one outside 0..classes - 1."""
    labels = content.labels
    if not len(labels):
        raise InputError(f"data: {what} has no samples")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(f"data: {what} sample {wrong[0]} has class {labels[wrong[0]]}, outside 0..{classes - 1}")
    writer.add(f"{part}-y", labels.astype(np.int64))


def write_own_labels(writer: Writer, parts: Mapping[str, Part]) -> None:
    """Write the labels of a user's own files unchanged; texts as numbers in sorted order, with the list of texts.

    If files declare the names of class numbers, their count is the number of classes. Raises InputError
    for other numbers, and if one part has texts and another numbers.
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
    """Write the token numbers of all parts, by the tokenizer or else by a vocabulary of the training texts."""
    texts = {part: list(content.samples) for part, content in parts.items()}
    if form.tokenizer is not None:
        for part, some in texts.items():
            writer.add(f"{part}-x", form.tokenizer.encode(some, form.length))
        return
    vocabulary = build_vocabulary(texts["train"], size)
    for part, some in texts.items():
        writer.add(f"{part}-x", encode(some, vocabulary, form.length))
    writer.metadata["vocabulary"] = vocabulary


def write_groups(writer: Writer, parts: Mapping[str, Part]) -> None:
    """Write domains and users as numbers in the order of their names, the same numbers in all parts that have them.

    A test set may have none: it is shared. Raises InputError for names that do not fit into a table.
    """
    for group in ("domain", "user"):
        columns = {part: column for part, content in parts.items() if (column := getattr(content, group)) is not None}
        if "train" in columns:
            ids, names = numbered(columns, group)
            writer.metadata[f"{group}s"] = list(names)
            for part, column in ids.items():
                writer.add(f"{part}-{group}", column)

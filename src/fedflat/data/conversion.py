"""Conversion of the parts that a reader returns into the arrays of a cache entry, in the form that users choose.

Texts become token numbers: by a vocabulary of words, or by the tokenizer of a pretrained model.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, MissingPackageError, printable
from ..core.progress import Progress
from ..files import read_bytes, read_json
from . import encoding_process
from .cache import Writer
from .labels import named, numbered
from .readers.layouts import Part, Shape
from .schema import Schema

PADDING, UNKNOWN = "<pad>", "<unk>"  # the tokens with the numbers 0 and 1 in a vocabulary
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
LENGTH = 128  # tokens of a text, unless another length is given
FILE, CONFIG = "tokenizer.json", "config.json"
MAX_BYTES = 2**28
LARGEST = 2**31 - 1  # the largest token number, as an int32
# The limit of time is generous: the tokenizers in use read a million characters per second on one core.
SECONDS, CHARACTERS_PER_SECOND = 60.0, 20_000
MEMORY = 4 * 2**30  # bytes


def words(text: str) -> list[str]:
    """Return the words of `text` in lower case: letters and digits, with at most one apostrophe inside."""
    return WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """Return a vocabulary of at most `size` tokens: padding, unknown, and the most frequent words of `texts`.

    Words that are equally frequent are in alphabetical order.
    """
    counts = Counter(word for text in texts for word in words(text))
    frequent = sorted(counts, key=lambda word: (-counts[word], word))
    return (PADDING, UNKNOWN, *frequent[: size - 2])


def encode(texts: Sequence[str], vocabulary: Sequence[str], length: int = LENGTH) -> NDArray[np.int16]:
    """Return token numbers (n, length) of `texts`; words that are not in `vocabulary` get number 1."""
    number = {word: i for i, word in enumerate(vocabulary)}
    rows = np.zeros((len(texts), length), dtype=np.int16)
    for row, text in zip(rows, texts, strict=True):
        tokens = [number.get(word, 1) for word in words(text)[:length]]
        row[: len(tokens)] = tokens
    return rows


class Tokenizer:
    """The `tokenizer.json` in the folder of a model, with the padding that the model's `config.json` states."""

    def __init__(self, folder: str) -> None:
        """Raise InputError if the folder has no tokenizer."""
        self.folder = Path(folder).expanduser()
        if not (self.folder / FILE).is_file():
            raise InputError(f"data.tokenizer: {self.folder} has no {FILE}; save the model's fast tokenizer there")
        content = read_bytes(self.folder / FILE, MAX_BYTES)
        self.digest = hashlib.sha256(content).hexdigest()  # token numbers depend only on it and on `padding`

    @cached_property
    def padding(self) -> int:
        """Number of the token that texts are padded with."""
        config = read_json(self.folder / CONFIG) if (self.folder / CONFIG).is_file() else None
        found = config.get("pad_token_id") if isinstance(config, dict) else None
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise InputError(f"data.tokenizer: {self.folder / CONFIG} says no pad_token_id to pad texts with")
        if found > LARGEST:
            raise InputError(f"data.tokenizer: {self.folder / CONFIG} says pad_token_id = {found}, at most {LARGEST}")
        return found

    def encode(self, texts: Sequence[str], length: int) -> NDArray[np.int32]:
        """Return token numbers (n, length) of `texts`, cut or padded to `length`, with the model's special tokens.

        A separate process computes the numbers within limits of time and memory. Raises InputError if the file is no
        tokenizer, or cannot encode these texts within the limits.
        """
        if find_spec("tokenizers") is None:
            raise MissingPackageError("data.tokenizer needs the package tokenizers: pip install fedflat[transformers]")
        path = self.folder / FILE
        seconds = SECONDS + sum(map(len, texts)) / CHARACTERS_PER_SECOND
        numbers = (length, self.padding, MEMORY, os.getpid())
        try:
            ended = subprocess.run(  # noqa: S603 (this interpreter and this package)
                [sys.executable, "-P", encoding_process.__file__, str(path), *map(str, numbers)],
                input="".join(f"{json.dumps(text)}\n" for text in texts).encode(),
                env=os.environ | {"PYTHONPATH": os.pathsep.join(place or os.getcwd() for place in sys.path)},
                capture_output=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InputError(f"data.tokenizer: {path} takes more than {seconds:.3g} seconds for the texts") from error
        if ended.returncode == encoding_process.NO_TOKENIZER:
            raise InputError(f"data.tokenizer: {path} is no tokenizer: {_reason(ended)}")
        if ended.returncode:
            raise InputError(f"data.tokenizer: {path} cannot encode the texts: {_reason(ended)}")
        return np.frombuffer(ended.stdout, dtype=np.int32).reshape(len(texts), length)


def _reason(ended: subprocess.CompletedProcess[bytes]) -> str:
    """Return in one line why the process ended."""
    if ended.returncode < 0:  # the library ends the process when it gets no memory
        return f"it was ended by {signal.Signals(-ended.returncode).name} (is it too large?)"
    return printable((ended.stderr.decode(errors="replace").splitlines() or ["no reason given"])[-1])


def tokenizer_of(folder: str | None) -> Tokenizer | None:
    """Return the tokenizer in `folder`; None without a folder."""
    return None if folder is None else Tokenizer(folder)


@dataclass(frozen=True)
class SampleFormat:
    """The form in which samples are stored: size of photographs, length and tokenizer of texts (None: the default)."""

    image_size: int | None = None  # pixels that photographs are resized to
    text_length: int | None = None  # tokens; longer texts are cut, shorter ones padded
    tokenizer: Tokenizer | None = None  # makes the token numbers of texts
    schema: Schema = Schema()  # meaning of a user's own files

    @property
    def length(self) -> int:
        """Number of tokens of a text."""
        return self.text_length or LENGTH

    @property
    def text_key(self) -> tuple[object, ...]:
        """The tokenizer's part of the key of converted texts in the cache; empty without a tokenizer."""
        return () if self.tokenizer is None else (self.tokenizer.digest, self.tokenizer.padding)

    def refuse_image_size(self, why: str) -> None:
        """Raise InputError if an image size is given; the message ends with `why`, which describes the samples."""
        if self.image_size is not None:
            raise InputError(f"data.image_size = {self.image_size} goes with photographs{why}")

    def refuse_text_options(self) -> None:
        """Raise InputError if an option for texts is given, because the samples are not texts."""
        if self.tokenizer is not None:
            raise InputError("data.tokenizer goes with texts, and this set has none; leave it out")
        if self.text_length is not None:
            raise InputError(
                f"data.text_length = {self.text_length} goes with texts, and this set has none; leave it out"
            )


OWN_FORMAT = SampleFormat()  # the default of every data set


def write_labels(writer: Writer, what: str, part: str, content: Part, classes: int) -> None:
    """Write the class indices of a part. Raises InputError for an empty part or an index outside 0..classes - 1."""
    labels = content.labels
    if not len(labels):
        raise InputError(f"data: {what} has no samples")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise InputError(f"data: {what} sample {wrong[0]} has class {labels[wrong[0]]}, outside 0..{classes - 1}")
    writer.add(f"{part}-y", labels.astype(np.int64))


def write_own_labels(writer: Writer, parts: Mapping[str, Part]) -> None:
    """Write the labels of a user's own files: numbers unchanged, texts as indices into the sorted list of texts.

    Also write the names of classes to the metadata: this list, or the names that the files declare for class numbers.
    The number of classes in the metadata is the number of declared names. Raises InputError for a class number without
    a declared name, for NaN and infinity, and if one part has texts and another numbers.
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
    with writer.rows(f"{part}-x", (shape.channels, shape.size, shape.size), np.uint8) as rows:
        for picture in content.samples:
            rows.add(picture[None])
            if rows.number % 1000 == 0 or rows.number == total:
                progress(part, rows.number, total)
        if rows.number != total:
            raise InputError(f"data: {part} has {total} labels but {rows.number} pictures")


def write_texts(writer: Writer, parts: Mapping[str, Part], size: int, form: SampleFormat) -> None:
    """Write the token numbers of all parts, as the tokenizer of `form` makes them.

    Without a tokenizer, they are the numbers of words: in the vocabulary that the schema states, or else in one of the
    training texts with at most `size` tokens.
    """
    texts = {part: list(content.samples) for part, content in parts.items()}
    if form.tokenizer is not None:
        for part, some in texts.items():
            writer.add(f"{part}-x", form.tokenizer.encode(some, form.length))
        return
    if form.schema.vocabulary:
        vocabulary = (PADDING, UNKNOWN, *form.schema.vocabulary)
    else:
        vocabulary = build_vocabulary(texts["train"], size)
    for part, some in texts.items():
        writer.add(f"{part}-x", encode(some, vocabulary, form.length))
    writer.metadata["vocabulary"] = vocabulary


def write_groups(writer: Writer, parts: Mapping[str, Part]) -> None:
    """Write domains and users as numbers in the order of their names; a name has the same number in every part.

    A test set may lack domains and users, because it is not split over clients. Raises InputError for names that do not
    fit into a table.
    """
    for group in ("domain", "user"):
        columns = {part: column for part, content in parts.items() if (column := getattr(content, group)) is not None}
        if "train" in columns:
            ids, names = numbered(columns, group)
            writer.metadata[f"{group}s"] = list(names)
            for part, column in ids.items():
                writer.add(f"{part}-{group}", column)

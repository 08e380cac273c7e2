"""Texts as token numbers: by a vocabulary of words, or by the tokenizer of a pretrained model."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, MissingPackageError, printable
from ..files import read_bytes, read_json
from . import encoding_process

PADDING, UNKNOWN = "<pad>", "<unk>"  # numbers 0 and 1 of a vocabulary
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
LENGTH = 128  # tokens of a text, unless another length is given
FILE, CONFIG = "tokenizer.json", "config.json"
MAX_BYTES = 2**28
LARGEST = 2**31 - 1  # token number, an int32
# Generous: the tokenizers in use read a million characters per second on one core.
SECONDS, CHARACTERS_PER_SECOND = 60.0, 20_000
MEMORY = 4 * 2**30  # bytes


def words(text: str) -> list[str]:
    """Return the words of `text` in lower case: letters and digits, with at most one apostrophe inside."""
    return WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[str], size: int) -> tuple[str, ...]:
    """Return padding, unknown, and the most frequent words of `texts`: at most `size` entries, ties alphabetical."""
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
        self.digest = hashlib.sha256(content).hexdigest()  # token numbers depend on it and on `padding` alone

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

        A separate process computes them within limits of time and memory. Raises InputError if the file is no
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
    """Return the tokenizer in a folder, if one is named."""
    return None if folder is None else Tokenizer(folder)

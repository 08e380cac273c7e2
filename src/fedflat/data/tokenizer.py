"""Texts as the token numbers of a pretrained model's own tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, MissingPackageError
from ..files import read_bytes, read_json

FILE, CONFIG = "tokenizer.json", "config.json"
MAX_BYTES = 2**28


class Tokenizer:
    """The `tokenizer.json` in the folder of a model; padding is what the model's `config.json` says."""

    def __init__(self, folder: str) -> None:
        """Raises InputError if the folder has no tokenizer."""
        self.folder = Path(folder).expanduser()
        if not (self.folder / FILE).is_file():
            raise InputError(f"data.tokenizer: {self.folder} has no {FILE}; save the model's fast tokenizer there")
        content = read_bytes(self.folder / FILE, MAX_BYTES)
        self.digest = hashlib.sha256(content).hexdigest()  # with `padding` all that token numbers depend on

    @cached_property
    def padding(self) -> int:
        """The number of the token that texts are padded with."""
        config = read_json(self.folder / CONFIG) if (self.folder / CONFIG).is_file() else None
        found = config.get("pad_token_id") if isinstance(config, dict) else None
        if isinstance(found, bool) or not isinstance(found, int) or found < 0:
            raise InputError(f"data.tokenizer: {self.folder / CONFIG} says no pad_token_id to pad texts with")
        return found

    def encode(self, texts: Sequence[str], length: int) -> NDArray[np.int32]:
        """Token numbers (n, length) of `texts`, cut or padded to `length`, with the model's own special tokens."""
        reader = self._reader()
        reader.enable_truncation(length)
        reader.no_padding()
        rows = np.full((len(texts), length), self.padding, dtype=np.int32)
        for row, encoded in zip(rows, reader.encode_batch_fast(list(texts)), strict=True):
            row[: len(encoded.ids)] = encoded.ids
        return rows

    def _reader(self) -> Any:
        """What the package `tokenizers` makes of the file, which holds no code."""
        try:
            from tokenizers import Tokenizer as Reader  # here, because it is optional
        except ImportError as error:
            raise MissingPackageError(
                "data.tokenizer needs the package tokenizers: pip install fedflat[transformers]"
            ) from error
        try:
            return Reader.from_file(str(self.folder / FILE))
        except Exception as error:  # of any type: the library raises no narrower one
            raise InputError(f"data.tokenizer: {self.folder / FILE} is no tokenizer: {error}") from error


def tokenizer_of(folder: str | None) -> Tokenizer | None:
    """The tokenizer in a folder, if one is named."""
    return None if folder is None else Tokenizer(folder)

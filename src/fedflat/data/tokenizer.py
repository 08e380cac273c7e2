"""Texts as the token numbers of a pretrained model's own tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.errors import InputError, MissingPackageError, printable
from ..files import read_bytes, read_json
from . import encoding_process

FILE, CONFIG = "tokenizer.json", "config.json"
MAX_BYTES = 2**28
LARGEST = 2**31 - 1  # token number, an int32
# Far more than any tokenizer that is in use needs: those read a million characters in a second, on one core.
SECONDS, CHARACTERS_PER_SECOND = 60.0, 20_000
MEMORY = 4 * 2**30  # bytes


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
        if found > LARGEST:
            raise InputError(f"data.tokenizer: {self.folder / CONFIG} says pad_token_id = {found}, at most {LARGEST}")
        return found

    def encode(self, texts: Sequence[str], length: int) -> NDArray[np.int32]:
        """Token numbers (n, length) of `texts`, cut or padded to `length`, with the model's own special tokens.

        They are found in a process of their own, within bounds of time and memory. Raises InputError if the file is no
        tokenizer, or cannot encode these texts within the bounds.
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
    """Why the process ended, in one line."""
    if ended.returncode < 0:  # the library ends the process when it gets no memory
        return f"it was ended by {signal.Signals(-ended.returncode).name} (is it too large?)"
    return printable((ended.stderr.decode(errors="replace").splitlines() or ["no reason given"])[-1])


def tokenizer_of(folder: str | None) -> Tokenizer | None:
    """The tokenizer in a folder, if one is named."""
    return None if folder is None else Tokenizer(folder)

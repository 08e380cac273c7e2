"""Texts as rows of token numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

LENGTH = 128  # tokens of a text; longer ones are cut, shorter ones padded
PADDING, UNKNOWN = "<pad>", "<unk>"  # numbers 0 and 1
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")


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

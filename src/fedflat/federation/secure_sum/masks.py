"""Masks: streams of 64-bit words that are added to sums modulo 2**64, and taken off again."""

from __future__ import annotations

from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Words = NDArray[np.uint64]
WORD = np.dtype("<u8")
AT_ONCE = 2**17  # words; they stay in the processor's cache


def add_mask(words: Words, key: bytes, sign: Literal[1, -1]) -> None:
    """Add the mask of `key`, 32 bytes that are used for nothing else, to `words` (n,) in place, or subtract it.

    It is the key stream of AES-256 in counter mode, which nobody without the key can tell from random words.
    """
    stream = Cipher(AES256(key), CTR(bytes(16))).encryptor()
    zeros = bytes(AT_ONCE * WORD.itemsize)
    for start in range(0, len(words), AT_ONCE):
        part = words[start : start + AT_ONCE]
        mask = np.frombuffer(stream.update(zeros[: len(part) * WORD.itemsize]), WORD)
        if sign > 0:
            part += mask
        else:
            part -= mask


def sign_of(mine: int, other: int) -> Literal[1, -1]:
    """Of two clients with a mask in common the one with the lower number adds it, and the other one subtracts it."""
    return 1 if mine < other else -1

"""Secret random numbers: a key of the operating system, keys that follow from it, and deviates made from those."""

from __future__ import annotations

import hashlib
import hmac
import secrets

import numpy as np
from numpy.typing import NDArray

from ...data.types import Index

KEY_BYTES = 32


def system_key() -> bytes:
    """A key from the operating system's generator."""
    return secrets.token_bytes(KEY_BYTES)


def seeded_key(seed: int, t: int) -> bytes:
    """A key that everybody knows who knows the seed: for tests, and for no private run."""
    return hashlib.sha256(f"not private: seed {seed}, round {t}".encode()).digest()


def derived_key(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose: HMAC-SHA256, so that it tells nothing of `key`, nor of the keys for other purposes."""
    return hmac.digest(key, purpose, "sha256")


def words(key: bytes, purpose: str, number: int) -> NDArray[np.uint64]:
    """So many words of 64 bits (number,), a stream of its own for each purpose: SHAKE-256 of key and purpose."""
    return np.frombuffer(hashlib.shake_256(key + purpose.encode()).digest(8 * number), dtype="<u8")


def poisson_sample(key: bytes, rate: float, clients: int) -> Index:
    """Each of `clients` with probability `rate`, independently of all others, in rising order; maybe nobody."""
    if rate == 1:
        return np.arange(clients)
    return np.flatnonzero(words(key, "cohort", clients) < np.uint64(int(rate * 2**64)))


def normal_deviates(key: bytes, purpose: str, number: int) -> NDArray[np.float64]:
    """Independent standard normal deviates (number,), by the method of Box and Muller in double precision.

    The radius has 64 random bits, so the largest deviate is 9.4.
    """
    half = -(-number // 2)
    uniform = (words(key, purpose, 2 * half) + 0.5) * 2.0**-64  # in (0, 1]
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:number]

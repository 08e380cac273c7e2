"""Shamir's secret sharing (1979) over GF(2^128).

The field is that of the program `ssss` and of pycryptodome: an element is a polynomial over GF(2) modulo
x^128 + x^7 + x^2 + x + 1. Its coefficients are the bits of an integer, which has 16 bytes in big-endian order. A secret
is the value of a random polynomial at 0. The share with index i is the value at the element whose bits are those of i.

Side channels: all branches and loops depend on indices and lengths, which are public. On secret values there are only
shifts, XORs, and the check of the padding. Python's integers are not constant in time: an operation can be faster for a
number with leading zeros.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

from cryptography.hazmat.primitives.padding import PKCS7

BITS, BLOCK, INDEX_BYTES = 128, 16, 4  # a share has its index, and an element for each block of the secret
MODULUS = 1 << BITS | 0b10000111


def create_shares(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """Split a secret into `number` shares; any `threshold` of them recover it.

    A share is 4 bytes for its index, which counts from 1 (little-endian), and then a share of each block of the padded
    secret (PKCS #7).
    """
    padder = PKCS7(BITS).padder()
    blocks = _blocks(padder.update(secret) + padder.finalize())
    polynomials = [[block, *(secrets.randbits(BITS) for _ in range(threshold - 1))] for block in blocks]
    return [
        index.to_bytes(INDEX_BYTES, "little") + b"".join(_value(one, index).to_bytes(BLOCK) for one in polynomials)
        for index in range(1, number + 1)
    ]


def combined(shares: Sequence[bytes]) -> bytes:
    """Return the secret from `threshold` of its shares. Raises ValueError if the shares do not fit together."""
    if len({len(share) for share in shares}) != 1 or len(shares[0]) % BLOCK != INDEX_BYTES:
        raise ValueError("the shares are not of one length, or not of whole blocks")
    factors = _factors(tuple(int.from_bytes(share[:INDEX_BYTES], "little") for share in shares))
    found = [0] * len(_blocks(shares[0][INDEX_BYTES:]))
    for share, factor in zip(shares, factors, strict=True):
        for place, block in enumerate(_blocks(share[INDEX_BYTES:])):
            found[place] ^= multiplied(block, factor)
    unpadder = PKCS7(BITS).unpadder()
    return unpadder.update(b"".join(block.to_bytes(BLOCK) for block in found)) + unpadder.finalize()


def _blocks(content: bytes) -> list[int]:
    return [int.from_bytes(content[start : start + BLOCK]) for start in range(0, len(content), BLOCK)]


def _value(coefficients: Sequence[int], at: int) -> int:
    """Return the value of a polynomial at the element `at`, which is public (Horner's scheme)."""
    value = 0
    for coefficient in reversed(coefficients):
        value = multiplied(value, at) ^ coefficient
    return value


@lru_cache(maxsize=16)
def _factors(indices: tuple[int, ...]) -> tuple[int, ...]:
    """Return the Lagrange factors of `indices`: a polynomial's values there, times the factors, sum to its value at 0.

    For n clients, the factors take O(n^2) operations, and combining one secret with them takes O(n). They are cached,
    because many secrets are combined from the shares of the same clients. Raises ValueError if two indices are equal,
    or if an index is zero.
    """
    if len({0, *indices}) != len(indices) + 1:
        raise ValueError("two shares have one index, or one has none")
    found = []
    for mine in indices:
        above = below = 1
        for other in indices:
            if other != mine:
                above, below = multiplied(above, other), multiplied(below, mine ^ other)
        found.append(multiplied(above, inverse(below)))
    return tuple(found)


def multiplied(element: int, public: int) -> int:
    """Return the product of two elements, in a time that depends on `public`."""
    product = 0
    for bit in range(public.bit_length()):
        if public >> bit & 1:
            product ^= element << bit
    for _ in range(2):  # a product has 255 bits; x^128 is x^7 + x^2 + x + 1, which leaves 134 bits, and then 128
        high = product >> BITS
        product = product & ((1 << BITS) - 1) ^ high ^ high << 1 ^ high << 2 ^ high << 7
    return product


def inverse(public: int) -> int:
    """Return the inverse of an element that is not zero (Hankerson, Menezes and Vanstone 2004, algorithm 2.48)."""
    left, right, of_left, of_right = public, MODULUS, 1, 0  # of_left * public = left, modulo MODULUS; so with right
    while left != 1:
        shift = left.bit_length() - right.bit_length()
        if shift < 0:
            left, right, of_left, of_right, shift = right, left, of_right, of_left, -shift
        left ^= right << shift
        of_left ^= of_right << shift
    return of_left

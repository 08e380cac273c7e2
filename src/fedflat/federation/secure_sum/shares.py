"""Puts secrets together from shares, Flower's and so pycryptodome's, with factors that are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from Crypto.Protocol.SecretSharing import _Element
from Crypto.Util.Padding import unpad

INDEX_BYTES, BLOCK = 4, 16  # of a share: its index, then a number of the field for each block of the secret
Element: Any = _Element  # of GF(2**128); the library's annotations are not those of its code


class SecretCombiner:
    """Puts together many secrets that were split alike.

    Flower's `combine_shares` computes the same, with factors that are the same for all secrets of which shares are
    known from the same clients: for n clients they cost the square of n, and each secret n.
    """

    def __init__(self) -> None:
        self._factors = cache(_factors)

    def combined(self, shares: Sequence[bytes]) -> bytes:
        """The secret, from as many of its shares as are needed. Raises ValueError if they do not fit together."""
        if len({len(share) for share in shares}) != 1:
            raise ValueError("shares are of several lengths")
        factors = self._factors(tuple(int.from_bytes(share[:INDEX_BYTES], "little") for share in shares))
        blocks = range(INDEX_BYTES, len(shares[0]), BLOCK)
        return unpad(b"".join(_block(shares, factors, start) for start in blocks), BLOCK)


def _block(shares: Sequence[bytes], factors: Sequence[Any], start: int) -> bytes:
    """One block of a secret: the sum of its shares, each times its factor."""
    total = Element(0)
    for share, factor in zip(shares, factors, strict=True):
        total += Element(share[start : start + BLOCK]) * factor
    found: bytes = total.encode()
    return found


def _factors(indices: tuple[int, ...]) -> tuple[Any, ...]:
    """Lagrange's: of the values of a polynomial at `indices`, each times its factor, the sum is the value at zero.

    Raises ValueError if two indices are equal, or one is zero.
    """
    if len({0, *indices}) != len(indices) + 1:
        raise ValueError("two shares have one index, or one has none")
    points, found = [Element(index) for index in indices], []
    for mine in points:
        above, below = Element(1), Element(1)
        for other in points:
            if other is not mine:
                above *= other
                below *= mine + other
        found.append(above * below.inverse())
    return tuple(found)

"""Masks are the key stream of a standard cipher, and come off to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from fedflat.federation.secure_sum import keys
from fedflat.federation.secure_sum.keys import add_mask, sign_of

KEY = bytes(range(32))


def test_a_mask_is_aes_of_0_1_2_and_so_on() -> None:
    words = np.zeros(9, "<u8")
    add_mask(words, KEY, 1)
    block = Cipher(AES256(KEY), ECB()).encryptor()
    expected = b"".join(block.update(i.to_bytes(16, "big")) for i in range(5))
    assert words.tobytes() == expected[: 9 * 8]


def test_it_does_not_depend_on_how_much_is_added_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, parts = np.zeros(1000, "<u8"), np.zeros(1000, "<u8")
    add_mask(whole, KEY, 1)
    monkeypatch.setattr(keys, "AT_ONCE", 64)
    add_mask(parts, KEY, 1)
    assert np.array_equal(whole, parts)


def test_masks_of_pairs_cancel_in_the_sum() -> None:
    """Whatever is in the words: addition is modulo 2**64."""
    rng = np.random.default_rng(0)
    before = rng.integers(0, 2**64, (4, 50), dtype=np.uint64)
    after = before.copy()
    for one in range(4):
        for other in range(4):
            if one != other:
                add_mask(after[one], bytes([min(one, other), max(one, other)] * 16), sign_of(one, other))
    assert not np.any(after == before)
    assert np.array_equal(after.sum(0), before.sum(0))

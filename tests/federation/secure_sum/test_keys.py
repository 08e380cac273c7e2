"""Keys in common and sealed messages, also by published vectors."""

from __future__ import annotations

import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedflat.federation.messages import RefusedError
from fedflat.federation.secure_sum.keys import (
    SEAL_BYTES,
    agreed_key,
    derived,
    new_secret,
    opened,
    public_key,
    sealed,
)


def test_a_public_key_and_the_common_key_are_those_of_rfc_7748() -> None:
    """Section 6.1, Alice's and Bob's. Our common key is derived from theirs, by the purpose and both public keys."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    public = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    other = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert (public_key(alice), public_key(bob)) == (public, other)
    assert agreed_key(alice, other, "p") == agreed_key(bob, public, "p") == derived(shared, "p", public + other)


def test_a_derived_key_is_that_of_rfc_5869() -> None:
    """Test case 3: no salt and no info; the first 32 of its 42 bytes."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert derived(bytes([0x0B] * 22), "").hex() == expected


def test_a_message_that_others_have_sealed_is_opened() -> None:
    """McGrew and Viega, The Galois/Counter Mode of Operation, test case 14: key, nonce and content are zeros."""
    sealed_by_others = bytes.fromhex("cea7403d4d606b6e074ec5d3baf39d18" + "d0d1c8a799996bf0265b98b5d48ab919")
    assert opened(bytes(32), bytes(12) + sealed_by_others, "") == bytes(16)


def test_both_sides_agree_and_every_purpose_has_its_own_key() -> None:
    a, b, c = new_secret(), new_secret(), new_secret()
    assert agreed_key(a, public_key(b), "p") == agreed_key(b, public_key(a), "p")
    others = [agreed_key(a, public_key(b), "q"), agreed_key(a, public_key(c), "p"), derived(a, "p"), derived(a, "q")]
    assert len({*others, agreed_key(a, public_key(b), "p")}) == 5


def test_a_key_is_that_of_its_secret_and_purpose() -> None:
    """HKDF (RFC 5869) without salt, whose `info` is the purpose."""
    secret = new_secret()
    drawn = hmac.digest(bytes(32), secret, "sha256")
    assert derived(secret, "p") == hmac.digest(drawn, b"p\x01", "sha256")


def test_a_common_key_is_that_of_its_purpose_and_of_both_public_keys() -> None:
    """HKDF of X25519's secret, whose `info` is the purpose, then the lower public key, then the other."""
    mine, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    publics = sorted(one.public_key().public_bytes_raw() for one in (mine, other))
    drawn = hmac.digest(bytes(32), mine.exchange(other.public_key()), "sha256")
    expected = hmac.digest(drawn, b"p" + publics[0] + publics[1] + b"\x01", "sha256")
    assert agreed_key(mine.private_bytes_raw(), other.public_key().public_bytes_raw(), "p") == expected


@pytest.mark.parametrize("public", [bytes(32), (1).to_bytes(32, "little"), b"", bytes(31)])
def test_keys_with_which_anybody_would_know_the_common_one_are_refused(public: bytes) -> None:
    with pytest.raises(RefusedError, match="a public key is no X25519 key"):
        agreed_key(new_secret(), public, "p")


def test_a_sealed_message_opens_with_its_key_and_circumstances_alone() -> None:
    key = new_secret()
    message = sealed(key, b"content", "1/2")
    assert len(message) == len(b"content") + SEAL_BYTES
    assert opened(key, message, "1/2") == b"content"
    assert sealed(key, b"content", "1/2") != message
    flipped = [message[:i] + bytes([message[i] ^ 1]) + message[i + 1 :] for i in range(len(message))]
    for wrong in ((new_secret(), message, "1/2"), (key, message, "2/1"), *((key, x, "1/2") for x in [b"", *flipped])):
        with pytest.raises(RefusedError, match="a sealed message cannot be opened"):
            opened(*wrong)

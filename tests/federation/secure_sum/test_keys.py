"""Keys in common, sealed messages, and shares of secrets."""

from __future__ import annotations

import hmac
from itertools import combinations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.common.secure_aggregation.crypto.shamir import combine_shares

from fedflat.federation.messages import RefusedError
from fedflat.federation.secure_sum.client import SHARE_BYTES
from fedflat.federation.secure_sum.keys import (
    SEAL_BYTES,
    agreed_key,
    create_shares,
    derived,
    new_secret,
    opened,
    public_key,
    sealed,
)


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


def test_any_three_of_five_shares_give_the_secret_and_no_two_do() -> None:
    secret = new_secret()
    shares = create_shares(secret, 3, 5)
    assert {len(share) for share in shares} == {SHARE_BYTES}
    assert all(combine_shares(list(some)) == secret for some in combinations(shares, 3))
    for two in combinations(shares, 2):
        try:
            assert combine_shares(list(two)) != secret
        except ValueError:  # what comes out is not even padded as a secret is
            continue

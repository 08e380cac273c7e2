"""Keys in common, sealed messages, and shares of secrets."""

from __future__ import annotations

from itertools import combinations

import pytest
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares

from fedflat.federation.codec import RefusedError
from fedflat.federation.secure_sum.client import SHARE_BYTES
from fedflat.federation.secure_sum.keys import (
    SEAL_BYTES,
    agreed_key,
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

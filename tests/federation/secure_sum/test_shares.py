"""Secrets put together with factors that are computed once: what Flower's own function puts together."""

from __future__ import annotations

from itertools import combinations

import pytest
from flwr.common.secure_aggregation.crypto.shamir import combine_shares

from fedflat.federation.secure_sum import keys
from fedflat.federation.secure_sum.keys import combined, create_shares, new_secret


def test_it_finds_what_flower_finds_of_any_clients() -> None:
    for _ in range(2):
        secret = new_secret()
        for some in combinations(create_shares(secret, 3, 6), 3):
            assert combined(some) == combine_shares(list(some)) == secret
            assert combined(some[::-1]) == secret


def test_factors_are_computed_once_for_the_same_clients() -> None:
    """They take the square of the number of clients, and there is a secret for each of them."""
    keys._factors.cache_clear()
    secrets = [new_secret() for _ in range(5)]
    split = [create_shares(secret, 3, 5) for secret in secrets]
    assert [combined(one[1:4]) for one in split] == secrets
    assert combined(split[0][:3]) == secrets[0]
    found = keys._factors.cache_info()
    assert (found.misses, found.hits) == (2, 4)


def test_shares_that_do_not_fit_together_are_no_secret() -> None:
    one = create_shares(new_secret(), 3, 5)
    zero = bytes(4) + one[1][4:]
    for wrong in ([one[0], one[1], one[1]], [one[0], zero, one[2]], [one[0], one[1], one[2][:-16]], []):
        with pytest.raises(ValueError, match=r"share|Padding|PKCS"):
            combined(wrong)

"""Shares of secrets: published vectors of the field and of the scheme, and shares that do not fit together."""

from __future__ import annotations

from itertools import combinations, islice

import pytest

from fedflat.federation.secure_sum import secret_sharing
from fedflat.federation.secure_sum.client import SHARE_BYTES
from fedflat.federation.secure_sum.keys import new_secret
from fedflat.federation.secure_sum.secret_sharing import combined, create_shares, inverse, multiplied

# Threshold, secret, and the shares 1, 2 and so on, as the program ssss (B. Poettering) has generated them in hex mode
# without diffusion. They are published in pycryptodome, Crypto/SelfTest/Protocol/test_SecretSharing.py.
SSSS = (
    (2, "d9fe73909bae28b3757854c0af7ad405",
     "1-594ae8964294174d95c33756d2504170 2-d897459d29da574eb40e93ec552ffe6e 3-5823de9bf0e068b054b5f07a28056b1b "
     "4-db2c1f8bff46d748f795da995bd080cb"),
    (3, "44cf249b68b80fcdc27b47be60c2c145",
     "1-d6515a3905cd755119b86e311c801e31 2-16693d9ac9f10c254036ced5f8917fa3 3-84f74338a48476b99bf5e75a84d3a0d1 "
     "4-3fe8878dc4a5d35811cf3cbcd33dbe52 5-ad76f92fa9d0a9c4ca0c1533af7f6132"),
    (5, "4a78db90fbf35da5545d2fb728e87596",
     "1-08daf9a25d8aa184cfbf02b30a0ed6a0 2-dda28261e36f0b14168c2cf153fb734e 3-e9fdec5505d674a57f9836c417c1ecaa "
     "4-4dce5636ae06dee42d2c82e65f06c735 5-3963dc118afc2ba798fa1d452b28ef00 6-6dfe6ff5b09e94d2f84c382b12f42424 "
     "7-6faea9d4d4a4e201bf6c90b9000630c3"),
    (10, "377e63bdbb5f7d4dc58a483d035212bb",
     "1-32c53260103be431c843b1a633afe3bd 2-0107eb16cb8695084d452d2cc50bc7d6 3-df1e5c66cd755287fb0446faccd72a06 "
     "4-361bbcd5d40797f49dfa1898652da197 5-160d3ad1512f7dec7fd9344aed318591 6-659af6d95df4f25beca4fb9bfee3b7e8 "
     "7-37f3b208977bad50b3724566b72bfa9d 8-6c1de2dfc69c2986142c26a8248eb316 9-5e19220837a396bd4bc8cd685ff314c3 "
     "10-86e7b864fb0f3d628e46d50c1ba92f1c 11-065d0082c80b1aea18f4abe0c49df72e 12-84a09430c1d20ea9f388f3123c3733a3"),
)  # fmt: skip
PADDING = bytes([16] * 16)  # PKCS #7 of a secret of 16 bytes: a block of its own


def power(element: int, exponent: int) -> int:
    found = 1
    for _ in range(exponent):
        found = multiplied(found, element)
    return found


def ours(share: str, threshold: int) -> bytes:
    """A share of ssss in our format. The polynomials of ssss have x^threshold too; a constant is a share of itself."""
    index, value = int(share.partition("-")[0]), int(share.partition("-")[2], 16)
    return index.to_bytes(4, "little") + (value ^ power(index, threshold)).to_bytes(16) + PADDING


@pytest.mark.parametrize(("threshold", "secret", "text"), SSSS)
def test_any_shares_of_ssss_give_its_secret_and_one_fewer_do_not(threshold: int, secret: str, text: str) -> None:
    shares = [ours(share, threshold) for share in text.split()]
    for some in islice(combinations(shares, threshold), 20):
        assert combined(some) == combined(some[::-1]) == bytes.fromhex(secret)
        assert combined(some[1:]) != bytes.fromhex(secret)


def reversed_bits(text: str) -> int:
    return int(f"{int(text, 16):0128b}"[::-1], 2)


@pytest.mark.parametrize(
    ("element", "product"),
    [
        ("0388dace60b6a392f328c2b971b2fe78", "5e2ec746917062882c85b0685353deb7"),
        ("5e2ec746917062882c85b0685353de37", "f38cbb1ad69223dcc3457ae5b6b0f885"),
    ],
)
def test_a_product_is_that_of_the_publication_of_gcm(element: str, product: str) -> None:
    """McGrew and Viega, test case 2, by H. GCM has the same field with its bits in the opposite order.

    The second element is the first product plus the lengths, 0x80.
    """
    key = reversed_bits("66e94bd4ef8a2c3b884cfa59ca342b2e")
    assert multiplied(reversed_bits(element), key) == multiplied(key, reversed_bits(element)) == reversed_bits(product)


def test_an_inverse_is_a_power() -> None:
    """Of the 2**128 - 1 elements other than zero: a^(2^128 - 2) = 1/a."""
    for element in (1, 2, 3, 2**127, int.from_bytes(new_secret()[:16])):
        expected, square = 1, element
        for _ in range(127):
            square = multiplied(square, square)
            expected = multiplied(expected, square)
        assert inverse(element) == expected
        assert multiplied(element, expected) == 1


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32])
def test_any_three_of_six_shares_give_the_secret_and_no_two_do(length: int) -> None:
    secret = new_secret()[:length]
    shares = create_shares(secret, 3, 6)
    assert {len(share) for share in shares} == {4 + 16 * (length // 16 + 1)}
    assert all(combined(some) == secret for some in combinations(shares, 3))
    for two in combinations(shares, 2):
        try:
            assert combined(two) != secret
        except ValueError:  # what comes out is not even padded as a secret is
            continue


def test_a_share_of_a_key_has_the_length_that_messages_allow() -> None:
    assert {len(share) for share in create_shares(new_secret(), 3, 5)} == {SHARE_BYTES}


def test_shares_are_new_each_time() -> None:
    secret = new_secret()
    assert not set(create_shares(secret, 2, 5)) & set(create_shares(secret, 2, 5))


def test_factors_are_computed_once_for_the_same_clients() -> None:
    """They take the square of the number of clients, and there is a secret for each of them."""
    secret_sharing._factors.cache_clear()
    secrets = [new_secret() for _ in range(5)]
    split = [create_shares(secret, 3, 5) for secret in secrets]
    assert [combined(one[1:4]) for one in split] == secrets
    assert combined(split[0][:3]) == secrets[0]
    found = secret_sharing._factors.cache_info()
    assert (found.misses, found.hits) == (2, 4)


def test_shares_that_do_not_fit_together_are_no_secret() -> None:
    one = create_shares(new_secret(), 3, 5)
    zero = bytes(4) + one[1][4:]
    cut = [share[:-1] for share in one[:3]]
    for wrong in ([one[0], one[1], one[1]], [one[0], zero, one[2]], [one[0], one[1], one[2][:-16]], cut, [b""], []):
        with pytest.raises(ValueError, match="share"):
            combined(wrong)
    changed = [*one[:2], one[2][:-1] + bytes([one[2][-1] ^ 0x80])]
    with pytest.raises(ValueError, match="padding"):
        combined(changed)

"""The cryptography of a secure sum: keys, sealed messages and masks."""

from __future__ import annotations

import hashlib
import secrets
from typing import Literal

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from ..messages import RefusedError

KEY_BYTES = 32  # of every key, public or secret, of a seed and of its digest
NONCE_BYTES = 12
SEAL_BYTES = NONCE_BYTES + 16  # the length of a sealed message minus that of its content
Words = NDArray[np.uint64]
WORD = np.dtype("<u8")
AT_ONCE = 2**17  # words that are masked at once; they stay in the processor's cache


def new_secret() -> bytes:
    """Return a new secret, from the operating system's randomness: an X25519 key, or a seed."""
    return secrets.token_bytes(KEY_BYTES)


def public_key(secret: bytes) -> bytes:
    """Return the public key of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def digest(seed: bytes) -> bytes:
    """Return the SHA-256 of a seed. The digest commits a client to the seed without revealing it."""
    return hashlib.sha256(seed).digest()


def derived(secret: bytes, purpose: str, publics: bytes = b"") -> bytes:
    """Derive a key from `secret` for one purpose, bound to `publics`, such as public keys (HKDF-SHA256)."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode() + publics).derive(secret)


def agreed_key(secret: bytes, public: bytes, purpose: str) -> bytes:
    """Return the key that the owners of `secret` and `public` share. Raises RefusedError for a weak public key."""
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # of wrong length, or a key for which every shared key is zero
        raise RefusedError("a public key is no X25519 key") from error
    return derived(shared, purpose, b"".join(sorted((public, public_key(secret)))))


def sealed(key: bytes, content: bytes, about: str) -> bytes:
    """Encrypt `content` with `key`, bound to `about` (AES-256-GCM)."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about.encode())


def opened(key: bytes, message: bytes, about: str) -> bytes:
    """Decrypt a message of `sealed`. Raises RefusedError for another key, another `about`, or a changed message."""
    try:
        return AESGCM(key).decrypt(message[:NONCE_BYTES], message[NONCE_BYTES:], about.encode())
    except (InvalidTag, ValueError) as error:
        raise RefusedError("a sealed message cannot be opened") from error


def add_mask(words: Words, key: bytes, sign: Literal[1, -1]) -> None:
    """Add the mask of `key` to `words` (n,) in place, or subtract it if `sign` is -1.

    The mask is the key stream of AES-256 in counter mode; without the key it looks like random words. key: 32 bytes,
    which must be used for nothing else.
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
    """Return the sign with which client `mine` adds the mask that it shares with `other`: 1 if `mine` is lower."""
    return 1 if mine < other else -1

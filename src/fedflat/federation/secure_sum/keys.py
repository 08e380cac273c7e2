"""Keys that two clients have in common, and messages that only one of them can read; all of it is `cryptography`'s."""

from __future__ import annotations

import hashlib
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ..codec import RefusedError

KEY_BYTES = 32  # of every key, public or secret, of a seed and of its digest
NONCE_BYTES = 12
SEAL_BYTES = NONCE_BYTES + 16  # that a sealed message is longer than what is in it


def new_secret() -> bytes:
    """A new secret, from the operating system's randomness: an X25519 key, or a seed."""
    return secrets.token_bytes(KEY_BYTES)


def public_key(secret: bytes) -> bytes:
    """The public key of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def digest(seed: bytes) -> bytes:
    """What commits a client to its seed, and tells nothing of it."""
    return hashlib.sha256(seed).digest()


def derived(secret: bytes, purpose: str, publics: bytes = b"") -> bytes:
    """A key for one purpose, and the public keys that it comes from, if it does (HKDF-SHA256)."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode() + publics).derive(secret)


def agreed_key(secret: bytes, public: bytes, purpose: str) -> bytes:
    """The key that the owners of `secret` and of `public` have in common. Raises RefusedError for a weak public key."""
    try:
        shared = X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # of another length, or one with which all keys in common are zero
        raise RefusedError("a public key is no X25519 key") from error
    return derived(shared, purpose, b"".join(sorted((public, public_key(secret)))))


def sealed(key: bytes, content: bytes, about: str) -> bytes:
    """`content`, readable with `key` alone and tied to `about` (AES-256-GCM)."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, about.encode())


def opened(key: bytes, message: bytes, about: str) -> bytes:
    """What was given to `sealed`. Raises RefusedError if it was with another key or `about`, or is changed."""
    try:
        return AESGCM(key).decrypt(message[:NONCE_BYTES], message[NONCE_BYTES:], about.encode())
    except (InvalidTag, ValueError) as error:
        raise RefusedError("a sealed message cannot be opened") from error

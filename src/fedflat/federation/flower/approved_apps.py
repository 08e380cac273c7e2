"""Apps that a server or a node may run: each is approved by the digest of its archive.

Flower's own check, `--trusted-entities`, requires signatures, which only apps of Flower's hub have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from ...core.errors import InputError
from ...files import system_errors
from .internals import build_app
from .settings import APP_DIGEST


def app_digest(folder: Path) -> str:
    """Return the digest of an exported app: "sha256:" and 64 digits. Raises InputError for a folder that is no app."""
    return digest_of(archive(folder))


def archive(folder: Path) -> bytes:
    """Build the archive of an app, as `flwr run` sends it. Raises InputError for a folder that is no app."""
    with system_errors(folder, "read"):
        if not (folder / "pyproject.toml").is_file():
            raise InputError(f"{folder} is no app: it has no pyproject.toml")
        try:
            return build_app(folder)
        except ValueError as error:
            raise InputError(f"{folder} is no app: {' '.join(str(error).split())[:200]}") from error


def digest_of(content: bytes) -> str:
    """Return the digest of the archive of an app."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def checked_digests(approved: Sequence[str]) -> frozenset[str]:
    """Return the digests of approved apps as a set. Raises InputError for a malformed digest, or if there is none."""
    if not approved:
        raise InputError("--app-digest is missing: `fedflat flower digest APP` prints it")
    for digest in approved:
        if not APP_DIGEST.fullmatch(digest):
            raise InputError(f"--app-digest {digest[:80]!r} must be sha256: and 64 hexadecimal digits")
    return frozenset(approved)


def refusal(party: str, sent: str, approved: frozenset[str]) -> str:
    """Return the line that says why `party` does not run the app with the digest `sent`."""
    return f"this {party} was sent the app {sent}, and runs only {' or '.join(sorted(approved))}"

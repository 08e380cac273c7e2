"""A SuperLink whose control API, which starts runs and registers nodes, requires a secret.

Flower's own check of accounts needs an OpenID server and a commercial plugin. Without any check, everyone who can reach
the port can run code there. Here a secret replaces the access token of an account. Flower's command `flwr` sends the
secret, once `log_in` has stored it for this user, and the SuperLink compares it with its own secret.
"""

from __future__ import annotations

import hmac
import re
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ...core.errors import InputError, shortened
from ...files import read_text, system_errors
from .internals import check_tokens, run_program, store_token

ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/]+):\d{1,5}")
LEAST_SECRET = 32  # characters: 128 bits in hexadecimal


def read_secret(path: Path) -> str:
    """Read the secret in a file. Raises InputError if the secret is short, or every user can read the file."""
    secret = read_text(path).strip()
    with system_errors(path, "read"):
        mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IROTH:
        raise InputError(f"{path} can be read by every user of this machine; `chmod 600 {path}`, and make a new secret")
    if len(secret) < LEAST_SECRET or not secret.isascii():
        raise InputError(f"{path} must hold at least {LEAST_SECRET} characters, such as `openssl rand -hex 32` prints")
    return secret


def is_secret(secret: str, token: str) -> bool:
    """Return whether a caller's token is the secret, in a time that does not depend on where they differ."""
    return hmac.compare_digest(token.encode(), secret.encode())


def run_superlink(secret_file: Path, arguments: Sequence[str]) -> None:
    """Run `flower-superlink` with these arguments and a control API that requires the secret, until the process ends.

    Raises InputError for an invalid secret, and if the check cannot be added to this version of Flower.
    """
    check_tokens(partial(is_secret, read_secret(secret_file)))
    run_program("flower-superlink", arguments)


def log_in(address: str, secret: str, home: Path | None = None) -> Path:
    """Store the secret for calls of `flwr` to the SuperLink at `address`, and return the path of the file.

    home: the folder of Flower's command; by default $FLWR_HOME. Only its owner can read the file. Raises InputError for
    an address without a port, under which `flwr` would never look, and if the file cannot be written.
    """
    if not ADDRESS.fullmatch(address):
        raise InputError(f"address {shortened(address)!r} must be HOST:PORT, as `address` in $FLWR_HOME/config.toml")
    path, is_written = store_token(address, secret, home)
    if not is_written:
        raise InputError(f"{path} cannot be written")
    return path

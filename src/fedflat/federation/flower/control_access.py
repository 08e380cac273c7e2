"""Who may use a SuperLink's control API, which starts runs and registers nodes: those who know a secret.

Flower's own check of accounts needs an OpenID server and a commercial plugin; without it, whoever reaches the port of a
SuperLink runs code there. Here a secret takes the place of an account's access token: the SuperLink compares it, and
Flower's command `flwr` sends it, once `log_in` has stored it for this user.
"""

from __future__ import annotations

import hmac
import stat
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, AuthnType
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
from flwr.supercore.utils import get_flwr_home, get_metadata_str
from flwr.superlink.auth_plugin import ControlAuthnPlugin

from ...core.errors import InputError
from ...files import read_text, system_errors

LEAST_SECRET = 32  # characters: 128 bits in hexadecimal
LOADER = "load_control_authn_plugin"  # the function of Flower that is replaced
Metadata = Sequence[tuple[str, str | bytes]]


class SecretAccess(ControlAuthnPlugin):
    """Flower's check of who calls the control API: whoever sends the secret is the one account."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        return None

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        token = get_metadata_str(metadata, ACCESS_TOKEN_KEY) or ""
        if not hmac.compare_digest(token.encode(), self._secret):
            return False, None
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        return None

    def refresh_tokens(self, metadata: Metadata) -> tuple[Metadata | None, AccountInfo | None]:
        return None, None


def read_secret(path: Path) -> str:
    """The secret in a file. Raises InputError if it is short, or other users of the machine can read it."""
    secret = read_text(path).strip()
    with system_errors(path, "read"):
        mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IROTH:
        raise InputError(f"{path} can be read by every user of this machine; `chmod 600 {path}`, and make a new secret")
    if len(secret) < LEAST_SECRET or not secret.isascii():
        raise InputError(f"{path} must hold at least {LEAST_SECRET} characters, such as `openssl rand -hex 32` prints")
    return secret


def run_superlink(secret_file: Path, arguments: Sequence[str]) -> None:
    """Be `flower-superlink` with these arguments, whose control API asks for the secret; it ends the process.

    Raises InputError for a secret that is none, and if this version of Flower cannot be given the check.
    """
    access = SecretAccess(read_secret(secret_file))
    program = import_module("flwr.superlink.cli.flower_superlink")
    if not hasattr(program, LOADER):
        raise InputError("this version of Flower checks accounts in another way; install flwr 1.41")
    setattr(program, LOADER, lambda: access)
    sys.argv = ["flower-superlink", *arguments]
    program.flower_superlink()


def log_in(address: str, secret: str, home: Path | None = None) -> Path:
    """Store the secret where `flwr` looks for it when it calls the SuperLink at `address`, and return the file.

    home: the folder of Flower's command; by default $FLWR_HOME. Only its owner can read the file. Raises InputError if
    it cannot be written.
    """
    path = (home or get_flwr_home()) / "credentials.yaml"
    store = FileCredentialStore(path)
    entries = {
        AUTHN_TYPE_STORE_KEY: AuthnType.OIDC,  # the only kind of account whose token Flower's command sends
        ACCESS_TOKEN_STORE_KEY: secret,
        REFRESH_TOKEN_STORE_KEY: secret,  # never asked for: the secret does not expire
    }
    for key, value in entries.items():
        store.set(key % address, value.encode())
    if store.get(ACCESS_TOKEN_STORE_KEY % address) != secret.encode():  # Flower's store keeps errors to itself
        raise InputError(f"{path} cannot be written")
    return path

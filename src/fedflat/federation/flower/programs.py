"""Flower's SuperLink, SuperExec and SuperNode with checks that they lack, and the login to the control API.

Each program is started in this process, after one function of Flower 1.41 has been replaced:

* **SuperLink**: its control API, which starts runs and registers nodes, requires a secret. Flower's own check of
  accounts needs an OpenID server and a commercial plugin. Without any check, everyone who can reach the port can run
  code there. Here a secret replaces the access token of an account. Flower's command `flwr` sends the secret, once
  `log_in` has stored it for this user, and the SuperLink compares it with its own secret.
* **SuperExec**: it runs approved apps only. Flower's own executor starts any app. It also puts the token of a task on
  the command line of the process, where every user of the machine can read it; the token suffices to read the task's
  model and to write its result. Here the process reads the token from a file without a name.
* **SuperNode**: it runs approved apps only. An app is identified by the SHA-256 of the archive that Flower sends.
  Flower's own check, `--trusted-entities`, requires signatures, which only apps of Flower's hub have. Here an app is
  checked directly after its download. An app that is not approved is neither unpacked nor stored, and the server
  receives the reason. Tasks go to a SuperExec that only this node uses. Node and SuperExec share a secret that
  is in no file; without it, any user of the machine could take a client's task and answer it.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import logging
import os
import re
import secrets
import signal
import stat
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from flwr.app import Error, Message
from flwr.cli.build import build_fab_from_disk
from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY, AUTHN_TYPE_STORE_KEY, REFRESH_TOKEN_STORE_KEY
from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, AuthnType, ErrorCode
from flwr.supercore.address import resolve_bind_address
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.supercore.constant import TASK_TYPE_TO_APPIO_API_ADDRESS_ARG, TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.utils import get_flwr_home, get_metadata_str
from flwr.superlink.auth_plugin import ControlAuthnPlugin
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from ...core.errors import InputError
from ...files import read_text, system_errors
from .client_process import ClientProcesses

LEAST_SECRET = 32  # characters: 128 bits in hexadecimal
LOADER = "load_control_authn_plugin"  # the function of Flower that is replaced
Metadata = Sequence[tuple[str, str | bytes]]
TASKS = frozenset({TaskType.SERVER_APP, TaskType.CLIENT_APP})
MAKER = "get_executor"  # the function of Flower that is replaced
log = logging.getLogger("flwr")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NEEDED = {"receive", "get_fab", "state", "object_store"}  # arguments of the function of Flower that is replaced
ISOLATION, SECRET = "--isolation", "--superexec-auth-secret-file"
OWN = {ISOLATION, SECRET}
supernode_program = import_module("flwr.supernode.cli.flower_supernode")  # the module; `import` would find the function
PullMessage = Callable[..., int | None]


class SecretAccess(ControlAuthnPlugin):
    """The control API's check of its callers: callers must send the secret. All callers that do are one account."""

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
    """Read the secret in a file. Raises InputError if the secret is short, or every user can read the file."""
    secret = read_text(path).strip()
    with system_errors(path, "read"):
        mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IROTH:
        raise InputError(f"{path} can be read by every user of this machine; `chmod 600 {path}`, and make a new secret")
    if len(secret) < LEAST_SECRET or not secret.isascii():
        raise InputError(f"{path} must hold at least {LEAST_SECRET} characters, such as `openssl rand -hex 32` prints")
    return secret


def run_superlink(secret_file: Path, arguments: Sequence[str]) -> None:
    """Run `flower-superlink` with these arguments and a control API that requires the secret, until the process ends.

    Raises InputError for an invalid secret, and if the check cannot be added to this version of Flower.
    """
    access = SecretAccess(read_secret(secret_file))
    program = import_module("flwr.superlink.cli.flower_superlink")
    if not hasattr(program, LOADER):
        raise InputError("this version of Flower checks accounts in another way; install flwr 1.41")
    setattr(program, LOADER, lambda: access)
    sys.argv = ["flower-superlink", *arguments]
    program.flower_superlink()


def log_in(address: str, secret: str, home: Path | None = None) -> Path:
    """Store the secret for calls of `flwr` to the SuperLink at `address`, and return the path of the file.

    home: the folder of Flower's command; by default $FLWR_HOME. Only its owner can read the file. Raises InputError if
    the file cannot be written.
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
    if store.get(ACCESS_TOKEN_STORE_KEY % address) != secret.encode():  # Flower's store does not report errors
        raise InputError(f"{path} cannot be written")
    return path


class ApprovedExecutor(SubprocessExecutor):
    """An executor that starts a server only from an approved app. The SuperNode checks the apps of clients."""

    def __init__(self, approved: frozenset[str]) -> None:
        """Accept servers of the apps with these digests."""
        self._approved, self._clients = approved, ClientProcesses()

    def get_eligible_capacity(
        self, supported_task_types: set[TaskType], *, insecure: bool = False, root_certificates_path: str | None = None
    ) -> tuple[set[TaskType], set[str]]:
        return supported_task_types & TASKS, set()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        found = f"sha256:{spec.fab_hash}"
        if spec.task_type is TaskType.SERVER_APP and found not in self._approved:
            return LaunchResult.failed(f"this server was sent the app {found}, and runs only "
                                       f"{' or '.join(sorted(self._approved))}")  # fmt: skip
        if spec.task_type is TaskType.CLIENT_APP:
            self._clients.run(_program(spec)[1:], spec.token)
            return LaunchResult.accepted()
        output = subprocess.DEVNULL if spec.suppress_output else None
        with private_file(spec.token.encode()) as token:
            subprocess.Popen(  # noqa: S603 (Flower's own programs)
                [*_program(spec), "--token-file", f"/dev/fd/{token}"], stdout=output, stderr=output, pass_fds=[token]
            )
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        self._clients.prepare()

    def close(self) -> None:
        self._clients.close()


def _program(spec: ExecutionSpec) -> list[str]:
    """Return the command of a task, without its token."""
    name = TASK_TYPE_TO_COMMAND[spec.task_type]
    path = Path(sysconfig.get_path("scripts")) / name
    words = [str(path) if path.exists() else name, TASK_TYPE_TO_APPIO_API_ADDRESS_ARG[spec.task_type]]
    words += [spec.runtime_api_address, *["--insecure"] * spec.insecure]
    if spec.root_certificates_path and not spec.insecure:
        words += ["--root-certificates", spec.root_certificates_path]
    return words if spec.parent_pid is None else [*words, "--parent-pid", str(spec.parent_pid)]


@contextmanager
def private_file(content: bytes) -> Iterator[int]:
    """Write `content` to a file without a name, and yield its handle N.

    A process that inherits the handle can read the file once, as /dev/fd/N.
    """
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def run_superexec(approved: frozenset[str], arguments: Sequence[str]) -> None:
    """Run `flower-superexec` with these arguments, for approved apps only, until the process ends.

    Raises InputError if the executor cannot be added to this version of Flower.
    """
    program = import_module("flwr.supercore.superexec.run_superexec")
    if not hasattr(program, MAKER):
        raise InputError("this version of Flower starts apps in another way; install flwr 1.41")
    setattr(program, MAKER, lambda *_, **__: ApprovedExecutor(approved))
    sys.argv = ["flower-superexec", *arguments]
    import_module("flwr.supercore.cli.flower_superexec").flower_superexec()


class AppRefusedError(Exception):
    """An app is not an approved one; the message is one line."""


def app_digest(folder: Path) -> str:
    """Return the digest of an exported app: "sha256:" and 64 digits. Raises InputError for a folder that is no app."""
    return _digest_of(archive(folder))


def archive(folder: Path) -> bytes:
    """Build the archive of an app, as `flwr run` sends it. Raises InputError for a folder that is no app."""
    with system_errors(folder, "read"):
        if not (folder / "pyproject.toml").is_file():
            raise InputError(f"{folder} is no app: it has no pyproject.toml")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's use of a library
                return build_fab_from_disk(folder)
        except ValueError as error:
            raise InputError(f"{folder} is no app: {' '.join(str(error).split())[:200]}") from error


def checked_digests(approved: Sequence[str]) -> frozenset[str]:
    """Return the digests of approved apps as a set. Raises InputError for a malformed digest, or if there is none."""
    if not approved:
        raise InputError("--app-digest is missing: `fedflat flower digest APP` prints it")
    for digest in approved:
        if not DIGEST.fullmatch(digest):
            raise InputError(f"--app-digest {digest[:80]!r} must be sha256: and 64 hexadecimal digits")
    return frozenset(approved)


def run_supernode(approved: Sequence[str], arguments: Sequence[str]) -> None:
    """Run `flower-supernode` with these arguments, until the process ends. approved: digests of apps, at least one.

    Raises InputError for a malformed digest, for arguments that the node sets itself, and if the check cannot be added
    to this version of Flower.
    """
    digests = checked_digests(approved)
    original = start_client_internal._pull_and_store_message
    if not set(inspect.signature(original).parameters) >= NEEDED:
        raise InputError("this version of Flower gets apps in another way, so none can be checked; install flwr 1.41")
    for word in arguments:
        if word.partition("=")[0] in OWN:
            raise InputError(f"{word} cannot be given: a node starts its own SuperExec, with a secret of its own")
    start_client_internal._pull_and_store_message = only_approved(original, digests)
    secret = secrets.token_bytes(32)
    with private_file(secret) as ours, private_file(secret) as theirs:
        _start_superexec(sorted(digests), arguments, theirs)
        sys.argv = ["flower-supernode", *arguments, ISOLATION, "process", SECRET, f"/dev/fd/{ours}"]
        flower_supernode()


def _start_superexec(approved: Sequence[str], arguments: Sequence[str], secret: int) -> None:
    """Start the node's SuperExec, which reads the secret from an open file. When it ends, the node ends, too."""
    given = supernode_program._parse_args_run_supernode().parse_args(list(arguments))
    host = f"[{given.host}]" if ":" in given.host else given.host
    words = ["--runtime-api-address", resolve_bind_address(f"{host}:{given.port}"), "--parent-pid", str(os.getpid())]
    words += ["--root-certificates", given.ssl_ca_certfile] if given.ssl_certfile else ["--insecure"]
    words += [word for digest in approved for word in ("--app-digest", digest)]
    command = [sys.executable, "-m", "fedflat", "flower", "superexec", *words, SECRET, f"/dev/fd/{secret}"]
    process = subprocess.Popen(command, pass_fds=[secret])  # noqa: S603 (our own program)

    def end_with_it() -> None:
        process.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=end_with_it, daemon=True).start()


def only_approved(pull: PullMessage, approved: frozenset[str]) -> PullMessage:
    """Wrap Flower's function `pull`, which receives a message and downloads the app of the message's run.

    The wrapped function accepts only approved apps. A message for any other app is answered with an error that names
    the app.
    """

    def checked(
        *, receive: Callable[[], Any], get_fab: Callable[..., Any], state: Any, object_store: Any, **others: Any
    ) -> int | None:
        messages: list[Message] = []

        def receive_message() -> Any:
            received = receive()
            messages.extend(received[:1] if received is not None else ())
            return received

        def get_approved(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            found = _digest_of(fab.content)
            if found not in approved or fab.hash_str != found.removeprefix("sha256:"):
                raise AppRefusedError(
                    f"this node was sent the app {found}, and runs only {' or '.join(sorted(approved))}"
                )
            return fab

        try:
            return pull(receive=receive_message, get_fab=get_approved, state=state, object_store=object_store, **others)
        except AppRefusedError as error:
            log.error("%s", error)
            reply = Message(Error(ErrorCode.INVALID_FAB, str(error)), reply_to=messages[0])
            start_client_internal._insert_message(reply, state, object_store)
            return messages[0].metadata.run_id

    return checked


def _digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"

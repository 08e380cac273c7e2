"""A SuperNode that runs no app but approved ones, which are told by the SHA-256 of what Flower sends of them.

Flower's own check, `--trusted-entities`, asks for signatures that only apps of its hub have. So the SuperNode is
started in this process, with a check between the download of an app and everything that is done with it: an app that is
not approved is neither unpacked nor stored, and the server is told why.

Tasks are given to a SuperExec of the node's own, and to nobody else: both know a secret that is in no file. Otherwise
every user of the machine could take a client's task and answer it.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

from flwr.app import Error, Message
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import ErrorCode
from flwr.supercore.address import resolve_bind_address
from flwr.supernode import start_client_internal
from flwr.supernode.cli import flower_supernode

from ...core.errors import InputError
from ...files import system_errors
from .task_executor import private_file

log = logging.getLogger("flwr")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NEEDED = {"receive", "get_fab", "state", "object_store"}  # arguments of the function of Flower that is replaced
ISOLATION, SECRET = "--isolation", "--superexec-auth-secret-file"
OWN = {ISOLATION, SECRET}
supernode_program = import_module("flwr.supernode.cli.flower_supernode")  # the module; its package has the function
PullMessage = Callable[..., int | None]


class AppRefusedError(Exception):
    """An app is not an approved one; the message is one line."""


def app_digest(folder: Path) -> str:
    """The digest of an exported app: "sha256:" and 64 digits. Raises InputError for a folder that is no app."""
    return _digest_of(archive(folder))


def archive(folder: Path) -> bytes:
    """What `flwr run` makes of an app and sends. Raises InputError for a folder that is no app."""
    with system_errors(folder, "read"):
        if not (folder / "pyproject.toml").is_file():
            raise InputError(f"{folder} is no app: it has no pyproject.toml")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of a library, that Flower calls it in an old way
                return build_fab_from_disk(folder)
        except ValueError as error:
            raise InputError(f"{folder} is no app: {' '.join(str(error).split())[:200]}") from error


def checked_digests(approved: Sequence[str]) -> frozenset[str]:
    """The digests of apps, at least one. Raises InputError for what is no digest."""
    if not approved:
        raise InputError("--app-digest is missing: `fedflat flower digest APP` prints it")
    for digest in approved:
        if not DIGEST.fullmatch(digest):
            raise InputError(f"--app-digest {digest[:80]!r} must be sha256: and 64 hexadecimal digits")
    return frozenset(approved)


def run_supernode(approved: Sequence[str], arguments: Sequence[str]) -> None:
    """Be `flower-supernode` with these arguments; it ends the process. approved: digests of apps, at least one.

    Raises InputError for what is no digest, for arguments that are the node's own, and if this version of Flower cannot
    be checked.
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
    """Start the node's SuperExec, which reads the secret from an open file; the node ends when it ends."""
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
    """Flower's function that takes a message, and gets its run's app first, for approved apps only.

    A message of another app is answered with an error that says so.
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

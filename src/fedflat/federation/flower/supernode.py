"""A SuperNode that runs approved apps only.

An app is identified by the SHA-256 of the archive that Flower sends, and is checked directly after its download. An app
that is not approved is neither unpacked nor stored, and the server receives the reason.

Tasks go to a SuperExec that only this node uses. Node and SuperExec share a secret that is in no file. Without it, any
user of the machine could take a client's task and answer it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Thread

from ...core.errors import InputError
from ..client_names import checked_name
from .approved_apps import checked_digests, digest_of, refusal
from .internals import check_apps, node_api, node_config, node_files, run_program
from .settings import NodeSettings
from .superexec import private_file

ISOLATION, SECRET = "--isolation", "--superexec-auth-secret-file"
OWN = {ISOLATION, SECRET}


def run_supernode(approved: Sequence[str], arguments: Sequence[str]) -> None:
    """Run `flower-supernode` with these arguments, until the process ends. approved: digests of apps, at least one.

    Raises InputError for a malformed digest, for arguments that the node sets itself, for a configuration or a file
    with which it could not take part, and if the check cannot be added to this version of Flower.
    """
    digests = checked_digests(approved)
    for word in arguments:
        if word.partition("=")[0] in OWN:
            raise InputError(f"{word} cannot be given: a node starts its own SuperExec, with a secret of its own")
    check_connection(arguments)
    check_apps(partial(app_refusal, digests))
    secret = secrets.token_bytes(32)
    with private_file(secret) as ours, private_file(secret) as theirs:
        _start_superexec(sorted(digests), arguments, theirs)
        run_program("flower-supernode", [*arguments, ISOLATION, "process", SECRET, f"/dev/fd/{ours}"])


def check_connection(arguments: Sequence[str]) -> None:
    """Raise InputError, naming key or file, for a configuration or files with which a node could not take part.

    Otherwise an error would come with the first message of a run, days later perhaps, and at the server.
    """
    settings = NodeSettings.parse("--node-config", node_config(arguments))
    if settings.name is not None:
        checked_name(settings.name)
    for name, path in node_files(arguments).items():
        if not Path(path).expanduser().is_file():
            raise InputError(f"{name}: {path} is not a file")


def app_refusal(approved: frozenset[str], content: bytes, named: str) -> str | None:
    """Return why the app in an archive is refused, or None if it is approved.

    named: the SHA-256 that the server says the archive has, as 64 digits; a false one is refused, too.
    """
    found = digest_of(content)
    if found in approved and named == found.removeprefix("sha256:"):
        return None
    return refusal("node", found, approved)


def _start_superexec(approved: Sequence[str], arguments: Sequence[str], secret: int) -> None:
    """Start the node's SuperExec, which reads the secret from an open file. When it ends, the node ends, too."""
    address, authority = node_api(arguments)
    words = ["--runtime-api-address", address, "--parent-pid", str(os.getpid())]
    words += ["--root-certificates", authority] if authority else ["--insecure"]
    words += [word for digest in approved for word in ("--app-digest", digest)]
    command = [sys.executable, "-m", "fedflat", "flower", "superexec", *words, SECRET, f"/dev/fd/{secret}"]
    process = subprocess.Popen(command, pass_fds=[secret])  # noqa: S603 (our own program)

    def end_with_it() -> None:
        process.wait()
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=end_with_it, daemon=True).start()

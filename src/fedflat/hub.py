"""Files of the Hugging Face hub: fetched only if a user says `--hub`, always from the same commit; and uploaded."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from .core.errors import InputError, first_line, printable
from .files import make_folder, read_json, write_text

PIN = "hub.json"  # in a folder: the repository whose files are there, and their commit
COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCH = "main"  # its newest commit is fetched if no revision is given and none was fetched before
MAX_PIN_BYTES = 2**16  # `hub.json` has two short texts
_inside = threading.local()  # `depth`: how many blocks of `no_network` this thread is in


def pinned(folder: Path, repository: str) -> str | None:
    """Return the commit of `repository` last fetched into `folder`, or None. Raises InputError for damaged hub.json."""
    path = folder / PIN
    if not path.exists():
        return None
    pin = read_json(path, MAX_PIN_BYTES)
    if not isinstance(pin, dict) or not isinstance(commit := pin.get("revision"), str) or not COMMIT.fullmatch(commit):
        raise InputError(f"{path} names no commit; remove it, or give --revision")
    return commit if pin.get("repository") == repository else None


def pin(folder: Path, repository: str, commit: str) -> None:
    """Record in `folder` which commit of `repository` was fetched."""
    text = json.dumps({"repository": repository, "revision": commit}, indent=2)
    make_folder(folder)
    write_text(folder / PIN, f"{text}\n")


def commit_of(kind: Literal["dataset", "model"], repository: str, revision: str | None) -> str:
    """Return the commit to which a branch, a tag or a short commit points now. Raises InputError; see `fetch`."""
    with _hub_errors(repository):
        api = _library().HfApi()
        info = api.dataset_info if kind == "dataset" else api.model_info
        commit = info(repository, revision=revision or BRANCH).sha
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise InputError(f"hub: {repository} does not say which commit {revision or BRANCH} is")
    return commit


def fetch(
    kind: Literal["dataset", "model"], repository: str, commit: str, folder: Path, files: str | Sequence[str]
) -> None:
    """Fetch the files of a commit that match the patterns `files` into `folder`; files already there are kept.

    Raises InputError if the extra `hub` is not installed, if the hub cannot be reached, or if the hub does not have the
    files.
    """
    with _hub_errors(repository):
        _library().snapshot_download(
            repository, repo_type=kind, revision=commit, local_dir=folder, allow_patterns=files
        )


def upload(repository: str, folder: Path, files: Sequence[str], private: bool) -> str:
    """Upload `files` of `folder` to the model `repository`, which is made if it is missing; return the address.

    Raises InputError if the extra `hub` is not installed, if the hub cannot be reached, or if it refuses.
    """
    with _hub_errors(repository, "uploaded to", "push_to_hub"):
        api = _library().HfApi()
        api.create_repo(repository, repo_type="model", private=private, exist_ok=True)
        found = api.upload_folder(
            repo_id=repository, folder_path=folder, repo_type="model", allow_patterns=list(files),
            commit_message="Upload a model trained by fedflat",
        )  # fmt: skip
    return str(found)


@contextmanager
def no_network() -> Iterator[None]:
    """Forbid network access by this thread inside the block: a library that tries gets a ConnectionError."""
    _watch_contacts()
    _inside.depth = getattr(_inside, "depth", 0) + 1
    try:
        yield
    finally:
        _inside.depth -= 1


@cache
def _watch_contacts() -> None:
    """Install the audit hook that refuses connections inside `no_network`; an audit hook cannot be removed."""

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo") and getattr(_inside, "depth", 0) > 0:
            raise ConnectionError("it asks the network for more, which is not done")

    sys.addaudithook(refuse)


def _library() -> Any:
    import huggingface_hub  # an optional extra

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # nothing is sent to the hub
    return huggingface_hub


@contextmanager
def _hub_errors(repository: str, what: str = "fetched", who: str = "--hub") -> Iterator[None]:
    """Turn every error in the block into InputError: a missing package, or an error of network, hub or disk."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{who} needs the extra: pip install 'fedflat[hub]'") from error
    except Exception as error:
        raise InputError(f"hub: {printable(repository)} cannot be {what}: {first_line(error)}") from error

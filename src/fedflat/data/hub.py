"""Downloading data sets from the Hugging Face hub, at the user's request, and always the same commit of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import InputError, printable
from ..files import read_json, system_errors, write_atomically
from .dataset import PIN, FileDataset, HubRepository

COMMIT = re.compile(r"[0-9a-f]{40}")
BRANCH = "main"  # its last commit is fetched if no revision is given and none was fetched before
MAX_PIN_BYTES = 2**16  # `hub.json` has two short texts


def download(name: str, known: FileDataset, root: Path, revision: str | None = None) -> Path:
    """Fetch the parquet files of the data set `name` into the folder `root`/`name`, which is returned.

    `revision` is a commit, branch or tag of the repository; by default it is the last commit that was fetched, which
    `hub.json` in the folder keeps. Existing files are not fetched again. Raises InputError if the extra `hub` is not
    installed, the hub does not have the data set or the revision, or the hub cannot be reached.
    """
    if known.hub is None:
        raise InputError(f"data.name = {name!r} is not on the hub; give data_dir (--data-dir) with {known.where}")
    folder = root / name
    commit = (_pinned(folder, known.hub) if revision is None else None) or _commit(known.hub, revision)
    files = f"{known.hub.folder}/*.parquet" if known.hub.folder else "*.parquet"
    with _hub_errors(known.hub):
        from huggingface_hub import snapshot_download  # an optional extra

        snapshot_download(
            known.hub.repository, repo_type="dataset", revision=commit, local_dir=folder, allow_patterns=files
        )
    pin = json.dumps({"repository": known.hub.repository, "revision": commit}, indent=2)
    with system_errors(folder, "written"):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PIN, lambda path: path.write_text(f"{pin}\n"))
    return folder


def _pinned(folder: Path, hub: HubRepository) -> str | None:
    """The last commit of this repository that was fetched, or None. Raises InputError for a damaged file."""
    path = folder / PIN
    if not path.exists():
        return None
    pin = read_json(path, MAX_PIN_BYTES)
    if not isinstance(pin, dict) or not isinstance(commit := pin.get("revision"), str) or not COMMIT.fullmatch(commit):
        raise InputError(f"{path} names no commit; remove it, or give --revision")
    return commit if pin.get("repository") == hub.repository else None


def _commit(hub: HubRepository, revision: str | None) -> str:
    """The commit to which a branch, a tag or a shortened commit points now."""
    with _hub_errors(hub):
        from huggingface_hub import HfApi  # an optional extra

        commit = HfApi().dataset_info(hub.repository, revision=revision or BRANCH).sha
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise InputError(f"hub: {hub.repository} does not say which commit {revision or BRANCH} is")
    return commit


@contextmanager
def _hub_errors(hub: HubRepository) -> Iterator[None]:
    """Turn errors into InputError: of a missing package, or, of any type, of the network, the hub and the disk."""
    try:
        yield
    except ImportError as error:
        raise InputError("--hub needs the extra: pip install 'fedflat[hub]'") from error
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(printable(f"hub: {hub.repository} cannot be fetched: {reason}")) from error

"""Sets from the Hugging Face hub, only when they are asked for, and always the same commit of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from ..core.errors import InputError, printable
from ..files import read_json, said_of, write_atomically
from .source import PIN, FileSet, Hub

COMMIT = re.compile(r"[0-9a-f]{40}")
MOST = 2**16  # bytes of `hub.json`, which has two short texts


def download(name: str, known: FileSet, root: Path, revision: str | None = None) -> Path:
    """Fetch the parquet files of the set `name` into the folder `root`/`name`, which is returned.

    `revision` is a commit, branch or tag of the repository; without it, the commit that was fetched last, which
    `hub.json` in the folder keeps. Files that are there already are not fetched again. Raises InputError if the extra
    `hub` is not installed, the hub does not have the set or the revision, or it cannot be reached.
    """
    if known.hub is None:
        raise InputError(f"data.name = {name!r} is not on the hub; give --data-dir with {known.where}")
    folder = root / name
    commit = (_pinned(folder, known.hub) if revision is None else None) or _commit(known.hub, revision)
    _fetch(known.hub, commit, folder)
    pin = json.dumps({"repository": known.hub.repository, "revision": commit}, indent=2)
    with said_of(folder, "written"):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / PIN, lambda path: path.write_text(f"{pin}\n"))
    return folder


def _pinned(folder: Path, hub: Hub) -> str | None:
    """The commit that was fetched last; None if that was none of this repository. Raises InputError for a bad file."""
    path = folder / PIN
    if not path.exists():
        return None
    pin = read_json(path, MOST)
    if not isinstance(pin, dict) or not isinstance(commit := pin.get("revision"), str) or not COMMIT.fullmatch(commit):
        raise InputError(f"{path} names no commit; remove it, or give --revision")
    return commit if pin.get("repository") == hub.repository else None


def _commit(hub: Hub, revision: str | None) -> str:
    """The commit that a branch, a tag or a shortened commit stands for now."""
    try:
        from huggingface_hub import HfApi  # an optional extra
    except ImportError as error:
        raise _missing() from error
    try:
        commit = HfApi().dataset_info(hub.repository, revision=revision or hub.revision).sha
    except Exception as error:  # the network, the hub's answer: one line whatever it was
        raise _failed(hub, error) from error
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise InputError(f"hub: {hub.repository} does not say which commit {revision or hub.revision} is")
    return commit


def _fetch(hub: Hub, commit: str, folder: Path) -> None:
    try:
        from huggingface_hub import snapshot_download  # an optional extra
    except ImportError as error:
        raise _missing() from error
    pattern = f"{hub.folder}/*.parquet" if hub.folder else "*.parquet"
    what = {"repo_type": "dataset", "revision": commit, "allow_patterns": pattern}
    try:
        snapshot_download(hub.repository, local_dir=folder, **what)
    except Exception as error:  # the network, the hub's answer, the disk: one line whatever it was
        raise _failed(hub, error) from error


def _missing() -> InputError:
    return InputError("--hub needs the extra: pip install 'fedflat[hub]'")


def _failed(hub: Hub, error: Exception) -> InputError:
    said = (str(error).splitlines() or [type(error).__name__])[0]
    return InputError(printable(f"hub: {hub.repository} cannot be fetched: {said}"))

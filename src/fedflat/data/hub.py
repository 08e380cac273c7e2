"""Downloading data sets from the Hugging Face hub, at the user's request, and always the same commit of them."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import InputError
from ..hub import commit_of, fetch, pin, pinned
from .dataset import FileDataset


def download(name: str, known: FileDataset, root: Path, revision: str | None = None) -> Path:
    """Fetch the parquet files of the data set `name` into the folder `root`/`name`, which is returned.

    `revision` is a commit, branch or tag of the repository; by default it is the last commit that was fetched, which
    `hub.json` in the folder keeps. Existing files are not fetched again. Raises InputError if the extra `hub` is not
    installed, the hub does not have the data set or the revision, or the hub cannot be reached.
    """
    if known.hub is None:
        raise InputError(f"data.name = {name!r} is not on the hub; give data_dir (--data-dir) with {known.where}")
    folder, repository = root / name, known.hub.repository
    commit = (pinned(folder, repository) if revision is None else None) or commit_of("dataset", repository, revision)
    files = f"{known.hub.folder}/*.parquet" if known.hub.folder else "*.parquet"
    fetch("dataset", repository, commit, folder, files)
    pin(folder, repository, commit)
    return folder

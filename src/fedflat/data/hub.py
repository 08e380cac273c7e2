"""Sets from the Hugging Face hub, only when they are asked for."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import InputError
from .source import FileSet


def download(name: str, known: FileSet, root: Path) -> Path:
    """Fetch the parquet files of the set `name` into the folder `root`/`name`, which is returned.

    Files that are there already are not fetched again. Raises InputError if the extra `hub` is not
    installed, the hub does not have the set, or it cannot be reached.
    """
    if known.hub is None:
        raise InputError(f"data.name = {name!r} is not on the hub; give --data-dir with {known.where}")
    try:
        from huggingface_hub import snapshot_download  # an optional extra
    except ImportError as error:
        raise InputError("--hub needs the extra: pip install 'fedflat[hub]'") from error
    folder = root / name
    pattern = f"{known.hub.folder}/*.parquet" if known.hub.folder else "*.parquet"
    try:
        snapshot_download(
            known.hub.repository,
            repo_type="dataset",
            revision=known.hub.revision,
            allow_patterns=pattern,
            local_dir=folder,
        )
    except Exception as error:  # the network, the hub's answer, the disk: one line whatever it was
        raise InputError(f"hub: {known.hub.repository} cannot be fetched: {str(error).splitlines()[0]}") from error
    return folder

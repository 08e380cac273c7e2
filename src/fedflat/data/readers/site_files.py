"""The part (train or test) and the client of each of a user's own files, as its path in the folder says.

`train.csv` and `test.csv` are of all clients, as are `train/CLASS/*.png`. `north.csv`, `train/north.csv`,
`north/train.csv` and `test/north.csv` are of the client `north`, and so are `north/train/CLASS/*.png`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import InputError, printable
from .file_search import plain_files
from .untrusted_files import expect, listed

PARTS = ("train", "test")


@dataclass(frozen=True)
class SiteFile:
    """One of a user's own files."""

    path: Path
    part: str  # train or test
    client: str  # empty: the file is of all clients


def site_files(place: Path, suffixes: Collection[str], inside: int = 0, of_clients: bool = True) -> list[SiteFile]:
    """Return the files at `place`, a folder or one file, that have one of the `suffixes`, sorted by their paths.

    inside: number of the last folders of each path that are part of the samples' description, such as their class.
    of_clients: whether paths name clients; if not, every file is of all clients.
    """
    if place.is_file():
        return [SiteFile(place, "train", "")] if place.suffix.lower() in suffixes else []
    found = []
    for path in plain_files(place):
        if path.suffix.lower() in suffixes:
            words = path.relative_to(place).with_suffix("").parts
            words = words[: -1 - inside] if inside else words
            part = "test" if "test" in words else "train"
            client = "/".join(word for word in words if word not in PARTS) if of_clients else ""
            found.append(SiteFile(path, part, client))
    return found


def of_parts(files: Sequence[SiteFile], place: Path) -> dict[str, list[SiteFile]]:
    """Return the files by part, without empty parts.

    Raises InputError if there is no training file, if some files of a part are of one client and others of all, and if
    a client has files for test and none for training.
    """
    parts = {part: [file for file in files if file.part == part] for part in PARTS}
    parts = {part: some for part, some in parts.items() if some}
    expect("train" in parts, str(place), "has files for test, and none for training")
    for part, some in parts.items():
        shared = [file.path.name for file in some if not file.client]
        expect(len({bool(file.client) for file in some}) == 1 or not shared, str(place),
               f"{listed(shared)} is of all clients, and other files for {part} are of one: give one kind")  # fmt: skip
    known = {file.client for file in parts["train"]}
    for file in parts.get("test", ()) if known != {""} else ():
        if file.client and file.client not in known:
            raise InputError(f"data: client {printable(file.client)!r} has samples for test, and none for training")
    return parts


def users_of(clients: dict[str, list[str]]) -> dict[str, list[str] | None]:
    """Return the client of each sample of each part, None for a part of all clients.

    Without a test part, training samples of all clients are those of one user, so that some can be held out.
    clients: of each part, empty texts where a sample is of all clients.
    """
    if "test" not in clients and not all(clients["train"]):
        return {"train": ["all"] * len(clients["train"])}
    return {part: some if all(some) else None for part, some in clients.items()}

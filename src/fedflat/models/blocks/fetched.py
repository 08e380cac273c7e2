"""Models that a user has fetched from the Hugging Face hub; of the functions here, only `fetch` uses the network."""

from __future__ import annotations

import re
from pathlib import Path

from ...core.errors import InputError, printable, shortened
from ...files import cache_folder
from ...hub import commit_of, pin, pinned
from ...hub import fetch as fetch_files

FILES = ("config.json", "model*.safetensors*", "tokenizer.json")  # no code is among them
_NAME = re.compile(r"hub:(\w[\w.-]*/[\w.-]*\w)", re.ASCII)  # the prefix tells it from a mistyped folder


def fetch(name: str, revision: str | None = None) -> Path:
    """Fetch the model `name`, hub:OWNER/NAME, into the user's cache folder, and return its folder.

    `revision` is a commit, branch or tag; by default the commit that was fetched last, else the newest. The model
    options `path` and `pretrained` then accept this name on this machine. Raises InputError if `name` is not of this
    form, if the extra `hub` is missing, or if the hub cannot be reached or does not have the model.
    """
    repository = _repository(name)
    if repository is None:
        raise InputError(f"{printable(shortened(name))!r} is no model of the hub: those are called hub:OWNER/NAME")
    place = _place(repository)
    commit = (pinned(place, repository) if revision is None else None) or commit_of("model", repository, revision)
    fetch_files("model", repository, commit, place / commit, FILES)
    pin(place, repository, commit)
    return place / commit


def fetched_commit(name: object) -> str | None:
    """Return the last fetched commit of the model `name`; None if never fetched, or if `name` is not hub:OWNER/NAME."""
    repository = _repository(name)
    return None if repository is None else pinned(_place(repository), repository)


def folder_of(option: str, value: str) -> Path:
    """Return the folder `value`; for hub:OWNER/NAME, that of the fetched model. Raises InputError, naming `option`."""
    folder = Path(value).expanduser()
    if folder.is_dir():
        return folder
    repository = _repository(value)
    if repository is None:
        raise InputError(f"model option {option} = {value!r} is no folder; a repository on the hub is hub:OWNER/NAME")
    commit = fetched_commit(value)
    if commit is None:
        raise InputError(f"model option {option} = {value!r} is not on this machine, and this fetches nothing: "
                         f"`fedflat prepare-model {value} --hub` does, or in Python fedflat.models.fetch")  # fmt: skip
    return _place(repository) / commit


def _repository(name: object) -> str | None:
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    return match[1] if match else None


def _place(repository: str) -> Path:
    """Return the folder of all fetched commits of a repository."""
    return cache_folder() / "models" / repository.replace("/", "--")

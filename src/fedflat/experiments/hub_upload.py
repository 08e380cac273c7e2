"""Upload of a run's exported model to the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..core.errors import InputError, printable, shortened
from ..core.object_references import is_reference
from ..hub import upload
from .export import export
from .model_card import HUB

if TYPE_CHECKING:
    from .run_directory import Format, StoredRun

REPOSITORY = re.compile(r"\w[\w.-]{0,95}/[\w.-]{0,95}\w", re.ASCII)


def push(run: StoredRun, repository: str, license: str | None, private: bool, format: Format) -> str:
    """Upload the files of `export` to `repository`; see `StoredRun.push_to_hub`."""
    if not isinstance(repository, str) or not REPOSITORY.fullmatch(repository):
        raise InputError(f"push_to_hub: {printable(shortened(str(repository)))!r} is no repository OWNER/NAME")
    if format == "safetensors":
        _check_loadable_elsewhere(run)
    with TemporaryDirectory() as place:
        folder = Path(place) / "model"
        return upload(repository, folder, export(run, folder, format, license), private)


def _check_loadable_elsewhere(run: StoredRun) -> None:
    """Raise InputError if load.py would name a file of this machine."""
    initial = run.initial_model
    named = {name: initial.options.get(name) for name in ("path", "pretrained")}
    own = [name for name, value in named.items() if isinstance(value, str) and not value.startswith(HUB)]
    if own or is_reference(str(initial.model)):
        what = f"model option {own[0]}" if own else "model"
        raise InputError(f"push_to_hub: {what} names a file of this machine, with which others cannot load the model; "
                         "start from a model of the hub, hub:OWNER/NAME, or give format='onnx'")  # fmt: skip

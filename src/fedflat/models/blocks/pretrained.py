"""Classifiers of `transformers` from a folder in the Hugging Face layout."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ...core.errors import InputError, MissingPackageError

_HUB_ID = re.compile(r"hub:([\w-][\w.-]*/[\w.-]+)")  # hub:owner/name: nothing is fetched for a mistyped folder


class PictureScores(nn.Module):
    """A classifier of pictures of `transformers` whose output is only its scores (b, classes)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the pictures `x` (b, channels, height, width)."""
        scores: Tensor = self.network(pixel_values=x, return_dict=True).logits
        return scores


def library(model: str) -> Any:
    """The `transformers` package, imported here because it is optional and takes seconds to import."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(
            f"model {model!r} needs the package transformers: pip install fedflat[transformers]"
        ) from error
    return transformers


def hub_repository(option: str, value: str) -> str | None:
    """The repository on the hub that `value` names; None if it is a folder. Raises InputError if it is neither."""
    if Path(value).expanduser().is_dir():
        return None
    on_hub = _HUB_ID.fullmatch(value)
    if on_hub is None:
        raise InputError(f"model option {option} = {value!r} is no folder; a repository on the hub is hub:OWNER/NAME")
    return on_hub[1]


def folder_of(option: str, value: str, files: tuple[str, ...] = ()) -> Path:
    """The folder that `value` names, or, for hub:OWNER/NAME, one with the downloaded files of that repository.

    Downloaded are configuration, safetensors, and further `files`. Raises InputError, naming the `option`.
    """
    repository = hub_repository(option, value)
    if repository is None:
        return Path(value).expanduser()
    import huggingface_hub  # installed with transformers

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # nothing is sent to the hub
    wanted = ["config.json", "model*.safetensors*", *files]
    try:  # not by transformers, which asks a service to convert repositories that have no safetensors
        return Path(huggingface_hub.snapshot_download(repository, allow_patterns=wanted))
    except Exception as error:  # of the network, the hub or the disk, of any type
        raise unusable(option, value, error) from error


def loaded(make: Any, folder: Path, option: str, value: str, **settings: Any) -> tuple[Any, list[str]]:
    """The network in `folder` in single precision, and the names of the parameters that the files do not have.

    `make` is a class of `transformers`. Only safetensors are read, no code of the folder is run, and nobody is asked
    at the terminal whether it may be. Raises InputError, naming the `option` and its `value`.
    """
    try:
        network, report = make.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, attn_implementation="eager",
            output_loading_info=True, **settings,
        )  # fmt: skip
    except Exception as error:  # of any type: the files may hold anything
        raise unusable(option, value, error) from error
    return network.float(), sorted(report["missing_keys"])


def unusable(option: str, value: str, error: Exception) -> InputError:
    """What is wrong with the files that `value` names, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return InputError(f"model option {option} = {value!r} cannot be loaded: {lines[0]}")


@contextmanager
def quiet(model: str) -> Iterator[None]:
    """Switch off warnings, advice and progress bars of `transformers` and its hub inside the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log = library(model).utils.logging
        from huggingface_hub.utils import logging as hub_log  # installed with transformers

        before, hub_before, bars = log.get_verbosity(), hub_log.get_verbosity(), log.is_progress_bar_enabled()
        log.set_verbosity_error()
        hub_log.set_verbosity(logging.ERROR)
        log.disable_progress_bar()  # the hub's too
        try:
            yield
        finally:
            log.set_verbosity(before)
            hub_log.set_verbosity(hub_before)
            if bars:
                log.enable_progress_bar()

"""Classifiers of `transformers` from a folder in the Hugging Face layout."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...core.errors import InputError, MissingPackageError, first_line
from ...files import read_json
from ...hub import no_network
from ...operating_system import memory_size

CONFIG = "config.json"
MODULES, LAYERS = 20_000, 10_000  # most in a network; the largest published networks have some thousands
LARGEST = 2**26  # largest integer allowed in a configuration
PER_BYTE, SPARE = 8, 2**28  # bytes of parameters allowed: for each byte of the files (may be packed); for a new head


class PictureScores(nn.Module):
    """A classifier of pictures of `transformers` whose output is only its scores (b, classes)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the pictures `x` (b, channels, height, width)."""
        scores: Tensor = self.network(pixel_values=x, return_dict=True).logits
        return scores


def library(model: str) -> Any:
    """Import the `transformers` package, here because it is optional and takes seconds to import."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(
            f"model {model!r} needs the package transformers: pip install fedflat[transformers]"
        ) from error
    return transformers


def loaded(make: Any, folder: Path, option: str, value: str, **settings: Any) -> tuple[Any, list[str]]:
    """Load the network in `folder` in single precision; return it with the names of parameters missing in the files.

    `make` is a class of `transformers`. Only safetensors are read, no code of the folder is run, and no prompt is shown
    at the terminal. Raises InputError, naming the `option` and its `value`, also if the configuration defines more
    parameters than the files can hold.
    """
    try:
        _check_numbers(read_json(folder / CONFIG))
        room = SPARE + PER_BYTE * sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        with bounded(room), no_network():  # a configuration may name a kernel or a backbone elsewhere
            network, report = make.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False,
                attn_implementation="eager", output_loading_info=True, **settings,
            )  # fmt: skip
    except Exception as error:  # of any type: the files may hold anything
        raise unusable(option, value, error) from error
    return network.float(), sorted(report["missing_keys"])


def _check_numbers(value: Any, name: str = CONFIG) -> None:
    """Raise InputError for an integer above LARGEST in a configuration: some classes make lists of that length."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        most = LAYERS if "layer" in f"{key}" or "depth" in f"{key}" else LARGEST
        if isinstance(inner, int) and abs(inner) > most:
            raise InputError(f"{name}: {key} = {inner} is more than {most:,}")
        _check_numbers(inner, f"{name}: {key}")


@contextmanager
def bounded(size: int) -> Iterator[None]:
    """Raise InputError if the block makes modules with more than `size` bytes of parameters and buffers.

    The same holds for more than `MODULES` modules. `transformers` first makes all modules without memory; they are
    counted then.
    """
    left = {"bytes": min(size, memory_size()), "modules": MODULES}

    def spend(what: str, number: int) -> None:
        left[what] -= number
        if left[what] < 0:
            raise InputError(f"its configuration makes more {what} than fit the files")

    def tensor_added(module: nn.Module, name: str, x: Tensor | None) -> None:
        spend("bytes", 0 if x is None else x.numel() * x.element_size())

    hooks = [
        torch.nn.modules.module.register_module_parameter_registration_hook(tensor_added),
        torch.nn.modules.module.register_module_buffer_registration_hook(tensor_added),
        torch.nn.modules.module.register_module_module_registration_hook(lambda *_: spend("modules", 1)),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def unusable(option: str, value: str, error: Exception) -> InputError:
    """Return an error of one line for the files that `value` names."""
    return InputError(f"model option {option} = {value!r} cannot be loaded: {first_line(error)}")


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

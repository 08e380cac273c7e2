"""ViT-B/32 (Dosovitskiy et al., 2021) as in FedLESAM, from `transformers`: 87,462,922 parameters with 10 classes."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..core.errors import InputError, MissingPackageError

SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "patch_size": 32,
}
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # owner/name


class Scores(nn.Module):
    """A classifier of `transformers` whose output is only its scores (b, classes)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.network(pixel_values=x, return_dict=True).logits
        return scores


def build(classes: int, shape: tuple[int, ...] = (3, 224, 224), pretrained: str | None = None) -> nn.Module:
    """A model with fresh weights, or with those of `pretrained` and a fresh last layer.

    `pretrained` is a local folder in the Hugging Face layout, from which safetensors are read and nothing is
    downloaded, or the id of a repository on the hub, which is downloaded. Attention is not fused, because fused
    attention has no second derivative. Its softmax is in single precision, whatever the model's dtype.
    """
    patch = SIZES["patch_size"]
    if len(shape) != 3 or shape[1] % patch or shape[2] % patch or min(shape) < 1:
        raise InputError(
            f"model 'vit-b-32' takes images whose sides are multiples of {patch} pixels, got shape {tuple(shape)}"
        )
    with _quiet():
        if pretrained is None:
            size = {"num_channels": shape[0], "image_size": shape[1] if shape[1] == shape[2] else tuple(shape[1:])}
            config = _library().ViTConfig(**SIZES, **size, num_labels=classes, attn_implementation="eager")
            return Scores(_library().ViTForImageClassification(config))
        network = _loaded(_folder(pretrained), pretrained)
    _check_sizes(network.config, shape, pretrained)
    network.classifier = _head(network.config, classes)
    return Scores(network).train()  # loading leaves layers in evaluation mode


def parameter_count(classes: int, shape: tuple[int, ...] = (3, 224, 224)) -> int:
    """How many parameters `build` gives; for this the package `transformers` is not needed."""
    d, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    channels, height, width = shape
    patch = SIZES["patch_size"]
    embeddings = d * channels * patch**2 + d  # of patches: a convolution with bias
    embeddings += d + d * (1 + (height // patch) * (width // patch))  # of the class, and of places
    attention = 4 * (d * d + d)  # query, key, value, output
    layer = attention + (d * inner + inner) + (inner * d + d) + 2 * 2 * d  # two norms, each with scale and shift
    return embeddings + SIZES["num_hidden_layers"] * layer + 2 * d + (d * classes + classes)


def _library() -> Any:
    """The `transformers` package, imported here because it is optional and takes seconds to import."""
    try:
        import transformers
    except ImportError as error:
        raise MissingPackageError(
            "model 'vit-b-32' needs the package transformers: pip install fedflat[transformers]"
        ) from error
    return transformers


def _folder(pretrained: str) -> Path:
    """The folder that `pretrained` names, or one with the downloaded files of the hub's repository."""
    folder = Path(pretrained).expanduser()
    if folder.is_dir():
        return folder
    if not _HUB_ID.fullmatch(pretrained):
        raise InputError(f"model option pretrained = {pretrained!r} is neither a folder nor the id of a hub repository")
    import huggingface_hub  # installed with transformers

    huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY = True  # nothing is sent to the hub
    try:  # not by transformers, which asks a service to convert repositories that have no safetensors
        return Path(
            huggingface_hub.snapshot_download(pretrained, allow_patterns=["config.json", "model*.safetensors*"])
        )
    except Exception as error:  # of the network, the hub or the disk, of any type
        raise _unusable(pretrained, error) from error


def _loaded(folder: Path, pretrained: str) -> Any:
    """The classifier in `folder`, in single precision, with its own last layer."""
    transformers = _library()
    try:
        network, report = transformers.ViTForImageClassification.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, attn_implementation="eager", output_loading_info=True
        )
    except Exception as error:  # of any type: the files may hold anything
        raise _unusable(pretrained, error) from error
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("classifier."))
    if missing:
        raise InputError(f"model option pretrained = {pretrained!r} has no weights for {missing[0]}")
    return network.float()


def _unusable(pretrained: str, error: Exception) -> InputError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return InputError(f"model option pretrained = {pretrained!r} cannot be loaded: {lines[0]}")


def _check_sizes(config: Any, shape: tuple[int, ...], pretrained: str) -> None:
    """Raise InputError if the loaded model has another architecture, or takes images of another shape."""
    for name, size in SIZES.items():
        found = getattr(config, name)
        if found != size:
            raise InputError(f"model option pretrained = {pretrained!r} is no ViT-B/32: {name} is {found}, not {size}")
    side = config.image_size
    taken = (config.num_channels, *((side, side) if isinstance(side, int) else side))
    if taken != tuple(shape):
        raise InputError(f"model option pretrained = {pretrained!r} takes images {taken}, the data have {tuple(shape)}")


def _head(config: Any, classes: int) -> nn.Module:
    """A linear layer with fresh weights as `transformers` initialises them."""
    head = nn.Linear(config.hidden_size, classes)
    nn.init.trunc_normal_(head.weight, std=config.initializer_range)
    nn.init.zeros_(head.bias)
    return head


@contextmanager
def _quiet() -> Iterator[None]:
    """Switch off warnings, advice and progress bars of `transformers` and its hub inside the block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log = _library().utils.logging
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

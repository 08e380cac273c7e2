"""ViT-B/32 (Dosovitskiy et al., 2021) as in FedLESAM, from `transformers`: 87,462,922 parameters with 10 classes."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..core.errors import InputError
from .blocks.fetched import folder_of
from .blocks.pretrained import PictureScores, library, loaded, quiet

NAME, OPTION = "vit-b-32", "pretrained"
SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "patch_size": 32,
}


def build(classes: int, shape: tuple[int, ...] = (3, 224, 224), pretrained: str | None = None) -> nn.Module:
    """Build a model with fresh weights, or with those of `pretrained` and a fresh last layer.

    `pretrained` is a local folder in the Hugging Face layout, from which safetensors are read and nothing is
    downloaded, or hub:OWNER/NAME, a repository on the hub that was fetched. Attention is not fused, because fused
    attention has no second derivative. Its softmax is in single precision, whatever the model's dtype.
    """
    patch = SIZES["patch_size"]
    if len(shape) != 3 or shape[1] % patch or shape[2] % patch or min(shape) < 1:
        raise InputError(
            f"model 'vit-b-32' takes images whose sides are multiples of {patch} pixels, got shape {tuple(shape)}"
        )
    with quiet(NAME):
        if pretrained is None:
            size = {"num_channels": shape[0], "image_size": shape[1] if shape[1] == shape[2] else tuple(shape[1:])}
            config = library(NAME).ViTConfig(**SIZES, **size, num_labels=classes, attn_implementation="eager")
            return PictureScores(library(NAME).ViTForImageClassification(config))
        make = library(NAME).ViTForImageClassification
        network, missing = loaded(make, folder_of(OPTION, pretrained), OPTION, pretrained)
    if missing := [name for name in missing if not name.startswith("classifier.")]:
        raise InputError(f"model option pretrained = {pretrained!r} has no weights for {missing[0]}")
    _check_sizes(network.config, shape, pretrained)
    network.classifier = _head(network.config, classes)
    return PictureScores(network).train()  # loading leaves layers in evaluation mode


def parameter_count(classes: int, shape: tuple[int, ...] = (3, 224, 224)) -> int:
    """Count the parameters of the model that `build` makes; the package `transformers` is not needed for it."""
    d, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
    channels, height, width = shape
    patch = SIZES["patch_size"]
    embeddings = d * channels * patch**2 + d  # of patches: a convolution with bias
    embeddings += d + d * (1 + (height // patch) * (width // patch))  # of the class, and of places
    attention = 4 * (d * d + d)  # query, key, value, output
    layer = attention + (d * inner + inner) + (inner * d + d) + 2 * 2 * d  # two norms, each with scale and shift
    return embeddings + SIZES["num_hidden_layers"] * layer + 2 * d + (d * classes + classes)


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
    """Make a linear layer with fresh weights as `transformers` initialises them."""
    head = nn.Linear(config.hidden_size, classes)
    nn.init.trunc_normal_(head.weight, std=config.initializer_range)
    nn.init.zeros_(head.bias)
    return head

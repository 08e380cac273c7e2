"""A classifier of texts or pictures by `transformers`, from a folder in the Hugging Face layout."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from .blocks.fetched import folder_of
from .blocks.pretrained import PictureScores, library, loaded, quiet, unusable

NAME, OPTION = "transformer", "path"
TOKENIZER = "tokenizer.json"


class TextScores(nn.Module):
    """A classifier of token numbers whose output is only its scores (b, classes); padding is masked."""

    def __init__(self, network: nn.Module, padding: int) -> None:
        """Wrap `network`; `padding` is the number of the token that texts are padded with."""
        super().__init__()
        self.network, self.padding, self.prepared = network, padding, True
        self.vocabulary: int = network.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
        self.prepared = _takes_prepared_masks(self, network)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the texts `x` (b, tokens)."""
        tokens = x.long()
        mask = (tokens != self.padding).long()
        if self.prepared:
            dtype = next(self.network.parameters()).dtype
            mask = (1 - mask[:, None, None]).to(dtype) * torch.finfo(dtype).min
            mask = mask.expand(-1, 1, tokens.shape[1], -1)
        scores: Tensor = self.network(input_ids=tokens, attention_mask=mask, return_dict=True).logits
        return scores


def _takes_prepared_masks(scores: TextScores, network: nn.Module) -> bool:
    """Tell whether the network takes an additive mask (b, 1, tokens, tokens) in place of one (b, tokens).

    Most networks do. They inspect the values of a mask (b, tokens), which is impossible for several clients at once.
    """
    token = 1 if scores.padding == 0 else 0
    x = torch.tensor([[token, token, scores.padding], [token, scores.padding, scores.padding]])
    network.eval()  # it is fresh from its files; `build` puts it into training mode
    with torch.no_grad():
        plain = network(input_ids=x, attention_mask=(x != scores.padding).long(), return_dict=True).logits
        try:
            found = scores(x)
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError):
            return False
    return torch.allclose(found, plain, rtol=1e-4, atol=1e-5)


def build(classes: int, shape: tuple[int, ...], path: str | None = None) -> nn.Module:
    """Load the classifier in the folder `path`; only safetensors are read, and nothing is downloaded.

    `path` may also be hub:OWNER/NAME, a repository on the hub that was fetched. Samples with one axis are token
    numbers; samples with three axes are pictures. If the folder has no last layer, or one for another number of
    classes, the last layer gets fresh weights. Attention is not fused, because fused attention has no second
    derivative.
    """
    if not isinstance(path, str) or not path:
        raise InputError("model 'transformer' needs its option path, a folder with config.json and safetensors: "
                         "--model.options.path FOLDER")  # fmt: skip
    if len(shape) not in (1, 3):
        raise InputError(f"model 'transformer' takes texts or pictures, not samples of shape {shape}")
    auto = "AutoModelForSequenceClassification" if len(shape) == 1 else "AutoModelForImageClassification"
    folder = folder_of(OPTION, path)  # an error before the library is imported, which takes two seconds
    with quiet(NAME):
        network, missing = loaded(
            getattr(library(NAME), auto), folder, OPTION, path, num_labels=classes, ignore_mismatched_sizes=True
        )
    encoder = f"{network.base_model_prefix}."
    if missing := [name for name in missing if name.startswith(encoder)]:
        raise InputError(f"model option path = {path!r} has no weights for {missing[0]}")
    if len(shape) == 3:
        return PictureScores(network).train()  # loading leaves layers in evaluation mode
    padding = _padding(network, shape, path)
    try:
        return TextScores(network, padding).train()
    except Exception as error:  # of any type: its configuration may hold anything, and this is its first use
        raise unusable(OPTION, path, error) from error


def _padding(network: Any, shape: tuple[int, ...], path: str) -> int:
    """Return the number of the padding token. Raises InputError if texts of `shape` are too long for the network."""
    config = network.config
    padding, most = getattr(config, "pad_token_id", None), getattr(config, "max_position_embeddings", None)
    if padding is None:
        raise InputError(f"model option path = {path!r}: its config.json has no pad_token_id, which marks padding")
    if padding < 0:
        raise InputError(f"model option path = {path!r}: its config.json says pad_token_id = {padding}")
    if most is not None and shape[0] > most:
        raise InputError(f"model option path = {path!r} takes {most} tokens, the data have {shape[0]}")
    return int(padding)

"""A small causal transformer for the next token at each position of a text (Radford et al., 2018), without dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.errors import InputError


class Attention(nn.Module):
    """Attention of each position to itself and earlier ones; not fused, because that has no second derivative."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.inside, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, length, width = x.shape
        parts = self.inside(x).view(b, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5).masked_fill(later, float("-inf"))
        found: Tensor = self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(b, length, width))
        return found


class Block(nn.Module):
    """Attention and two linear layers, each after a layer norm and beside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.between = nn.LayerNorm(width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        out: Tensor = x + self.network(self.between(x))
        return out


class CausalTransformer(nn.Module):
    """Embeddings of tokens and places, blocks, a layer norm, and a linear layer; scores (b, length, vocabulary)."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.places, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places[: tokens.shape[1]]
        scores: Tensor = self.out(self.norm(self.blocks(x)))
        return scores


def build(classes: int, shape: tuple[int, ...] = (80,), width: int = 64, layers: int = 2, heads: int = 4) -> nn.Module:
    """Build a causal transformer for texts of `shape` tokens below `classes`; attention has `heads` of `width`."""
    if len(shape) != 1:
        raise InputError(f"model 'causal-transformer' takes texts, got samples of shape {shape}")
    if width < 1 or heads < 1 or layers < 1 or width % heads:
        raise InputError(f"model option width = {width} must be a multiple of heads = {heads}, and layers positive")
    return CausalTransformer(classes, shape[0], width, layers, heads)

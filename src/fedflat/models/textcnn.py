"""TextCNN (Kim, 2014) as FedVSSAM uses it on DBpedia-14: 3,124,514 parameters with 14 classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..core.errors import InputError


class TextCNN(nn.Module):
    """Embeddings, convolutions of widths 3, 4 and 5, maximum over time, dropout, and a linear layer."""

    def __init__(self, vocabulary: int, classes: int, width: int, dropout: float) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, width)
        self.convolutions = nn.ModuleList(nn.Conv1d(width, 100, size) for size in (3, 4, 5))
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(300, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        features = [torch.relu(convolution(x)).amax(-1) for convolution in self.convolutions]
        scores: Tensor = self.out(self.dropout(torch.cat(features, 1)))
        return scores


def build(
    classes: int, shape: tuple[int, ...] = (128,), vocabulary: int = 30_000, width: int = 100, dropout: float = 0.5
) -> nn.Module:
    """Build a TextCNN for texts of `shape` tokens below `vocabulary`; FedVSSAM states no dropout, 0.5 is Kim's."""
    if len(shape) != 1 or shape[0] < 5:
        raise InputError(f"model 'textcnn' takes texts of at least 5 tokens, got shape {shape}")
    return TextCNN(vocabulary, classes, width, dropout)

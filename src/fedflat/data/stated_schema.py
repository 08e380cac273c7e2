"""The settings that state how all sites read their own files, taken from a whole data set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .dataset import LoadedDataset
from .numbers import kind_of

PICTURES_AT_ONCE = 1024


def stated_settings(loaded: LoadedDataset, words: int) -> dict[str, Any]:
    """Return the settings of `data` that state everything that was found in the samples of `loaded`, by name.

    words: largest number of words of a vocabulary.
    """
    found = dict(loaded.schema.stated)
    if loaded.task == "classification":
        indices = tuple(map(str, range(loaded.classes)))
        found["class_names"] = loaded.class_names or indices
        if found["class_names"] != indices:
            found["labels"] = "names"
    x = loaded.train.x
    if kind_of(x) == "pixels":
        found |= {"image_size": x.shape[-1], "channels": x.shape[1]}
        found |= dict(zip(("means", "deviations"), colour_statistics(x), strict=True))
    elif kind_of(x) == "tokens":
        found |= {"text_length": x.shape[-1]}
        found |= {"vocabulary": loaded.vocabulary[2 : 2 + words]} if loaded.vocabulary else {}
    return found


def colour_statistics(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each colour, in [0, 1], of pictures (n, channels, height, width) uint8.

    Sums of whole numbers are exact, so the result does not depend on the order of pictures. A colour that does not vary
    has the deviation 1.
    """
    total = squares = torch.zeros(x.shape[1], dtype=torch.int64)
    for some in torch.split(x, PICTURES_AT_ONCE):
        values = some.long()
        total, squares = total + values.sum((0, 2, 3)), squares + values.square().sum((0, 2, 3))
    number = x.numel() // x.shape[1]
    mean = total.double() / number
    deviation = (squares.double() / number - mean.square()).clamp(min=0).sqrt()
    deviation[deviation == 0] = 255
    return tuple((mean / 255).tolist()), tuple((deviation / 255).tolist())

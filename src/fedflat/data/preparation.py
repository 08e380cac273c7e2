"""Preparation of stored samples as model input, in batches and on the device: scaling, normalising, augmenting."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ..core.errors import InputError
from .readers.layouts import CHANNELS

PAD = 4  # largest number of pixels that a crop moves by in each direction
FIELD = 21  # bits of a 64-bit word that one random decision uses


def to_device(x: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy `x` from the host to `device`, without waiting for the device's earlier work if possible.

    Torch reads the memory of `x` before this function returns, and a GPU copies when its earlier work is finished.
    Apple's device (MPS) may read the memory later, so there this function returns only after the copy.
    """
    return x.to(device, dtype or x.dtype, non_blocking=device.type != "mps")


@dataclass(frozen=True)
class Preparation:
    """The conversion of stored samples to model input.

    Pictures (uint8) become floats of `dtype`, normalised per channel; tokens become int64; floats are unchanged.
    """

    mean: tuple[float, ...] = ()  # per channel, of pixels in [0, 1]; empty: pixels in [0, 1], not normalised
    std: tuple[float, ...] = ()
    dtype: torch.dtype = torch.float32

    def __call__(self, x: Tensor) -> Tensor:
        """Return the model's input for the stored samples `x` (*batch, *shape)."""
        if x.dtype != torch.uint8:
            return x if x.is_floating_point() else x.long()
        x = x.to(self.dtype).div_(255)  # a copy, so that it may be changed in place
        if not self.mean:
            return x
        mean, std = (_of_channels(values, x.dtype, x.device) for values in (self.mean, self.std))
        return x.sub_(mean).div_(std)


@lru_cache(maxsize=16)
def _of_channels(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return one number per channel, (channels, 1, 1), on `device`; the copy is made once, not for every batch."""
    with torch.inference_mode(False):  # evaluation may make this tensor, and training uses it, too
        return torch.tensor(values, dtype=dtype, device=device)[:, None, None]


IMAGENET = Preparation(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # usual for photographs


@dataclass(frozen=True)
class Augmentation:
    """A random crop of a picture padded by 4 pixels, and a random horizontal flip.

    The random decisions for a sample are read off one 64-bit word, so the same word always gives the same picture.
    """

    crop: float  # probability of a crop
    flip: float  # probability of a flip
    flip_first: bool  # flip before the crop
    border: Literal["black", "mean"]  # the padding: black pixels, or the mean colour (zero after normalising)

    def __call__(self, x: Tensor, words: NDArray[np.uint64], preparation: Preparation) -> Tensor:
        """Augment and prepare the stored pictures `x` (*batch, channels, height, width) by random `words` (*batch,)."""
        pictures = x.flatten(0, -4)
        if self.border == "mean":
            pictures = preparation(pictures)
        moved = self._moved(pictures, words.reshape(-1))
        return (preparation(moved) if self.border == "black" else moved).view(x.shape)

    def _moved(self, x: Tensor, words: NDArray[np.uint64]) -> Tensor:
        """Pad the pictures `x` (n, channels, height, width) with zeros, move and flip them."""
        height, width = x.shape[-2:]
        flipped, down, right = (to_device(torch.from_numpy(d)[:, None], x.device) for d in self.decisions(words))
        right = torch.where(flipped, -right, right) if self.flip_first else right
        columns = torch.arange(width, device=x.device)
        columns = torch.where(flipped, columns.flip(-1), columns) + right + PAD
        rows = torch.arange(height, device=x.device) + down + PAD
        place = rows[:, :, None] * (width + 2 * PAD) + columns[:, None, :]
        framed = pad(x, (PAD, PAD, PAD, PAD)).flatten(-2)
        return framed.gather(-1, place.flatten(1)[:, None].expand(-1, x.shape[1], -1)).view_as(x)

    def decisions(self, words: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Read off the words (n,): whether to flip, and the crop's moves down and right in pixels, -4 to 4."""
        fields = [(words >> np.uint64(FIELD * i) & np.uint64(2**FIELD - 1)).astype(np.int64) for i in range(3)]
        moves = [(field * (2 * PAD + 1) >> FIELD) - PAD for field in fields[:2]]
        # The third field decides two questions: its low half whether to crop, its high half whether to flip.
        half = FIELD // 2
        cropped = fields[2] % 2**half < self.crop * 2**half
        flipped = (fields[2] >> half) < self.flip * 2 ** (FIELD - half)
        down, right = (np.where(cropped, move, 0) for move in moves)
        return flipped, down, right


AUGMENTATIONS: dict[str, Augmentation | None] = {
    "none": None,
    # FedGF (Lee and Yoon, 2024): crop, flip, then normalise; so the border is black.
    "crop-flip": Augmentation(crop=1.0, flip=0.5, flip_first=False, border="black"),
    # FL-Simulator: normalise, flip, then crop with probability 1/2; so the border has the mean colour.
    "fl-simulator": Augmentation(crop=0.5, flip=0.5, flip_first=True, border="mean"),
}


def augmentation_of(augment: str, x: Tensor, name: str) -> Augmentation | None:
    """Return the augmentation called `augment`. Raises InputError unless the samples `x` (n, *shape) are pictures."""
    if augment != "none" and x.ndim != 4:
        raise InputError(f"data.augment = {augment!r} goes with pictures; {name} has none")
    if augment != "none" and x.shape[1] not in CHANNELS and x.shape[3] in CHANNELS:
        raise InputError(f"data.augment = {augment!r} goes with pictures (n, channels, height, width); {name} has "
                         f"{tuple(x.shape)}")  # fmt: skip
    return AUGMENTATIONS[augment]

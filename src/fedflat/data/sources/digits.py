"""Handwritten digits, 8x8 grey, 10 classes, 1,347 for training and 450 for test; comes with fedflat.

The images of scikit-learn's copy of the UCI set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998;
CC BY 4.0), scaled to [0, 1]. The test set is a fixed stratified quarter, the same for every seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ..dataset import BundledDataset, LoadedDataset, SampleArrays

# Not scikit-learn's own function: each new process would import it, which takes as long as all else before a round.
FILE = Path(__file__).with_name("digits.npz")
BRIGHTEST = 16  # value of a pixel in the file that is white


def read() -> LoadedDataset:
    """All 1,797 images, x (n, 1, 8, 8) float32."""
    with np.load(FILE, allow_pickle=False) as stored:
        train, test = (_samples(stored[f"{part}_x"], stored[f"{part}_y"]) for part in ("train", "test"))
    return LoadedDataset(train, test, classes=10)


def _samples(pixels: np.ndarray, labels: np.ndarray) -> SampleArrays:
    """Samples of pixels (n, 8, 8) in 0..16 and labels (n,), in memory of torch.

    Full-batch products round by the address, and that of numpy's memory differs by process.
    """
    x = torch.from_numpy(pixels)[:, None].float() / BRIGHTEST
    return SampleArrays(x, torch.from_numpy(labels).long())


SOURCE = BundledDataset(
    read,
    classes=10,
    shape=(1, 8, 8),
    sizes={"train": 1347, "test": 450},
    where="nothing needed: comes with fedflat",
)

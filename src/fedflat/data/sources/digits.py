"""Handwritten digits, 8x8 grey, 10 classes, 1,347 for training and 450 for test; ships with scikit-learn.

The images of the UCI optical recognition set, scaled to [0, 1]. The test set is a fixed stratified
quarter, the same for every seed.
"""

from __future__ import annotations

import torch

from ..dataset import BundledDataset, LoadedDataset, SampleArrays


def read() -> LoadedDataset:
    """All 1,797 images, x (n, 1, 8, 8) float32."""
    from sklearn.datasets import load_digits  # scikit-learn takes a second to import
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[:, None]
    split = train_test_split(
        images, digits.target.astype("int64"), test_size=0.25, random_state=0, stratify=digits.target
    )
    # Copied into memory that torch aligned: full-batch products round by the address, and numpy's differ by process.
    x, test_x, y, test_y = (torch.from_numpy(part).clone() for part in split)
    return LoadedDataset(SampleArrays(x, y), SampleArrays(test_x, test_y), classes=10)


SOURCE = BundledDataset(
    read,
    classes=10,
    shape=(1, 8, 8),
    sizes={"train": 1347, "test": 450},
    where="nothing needed: ships with scikit-learn",
)

"""Handwritten digits, 8x8 grey, 10 classes, 1,347 for training and 450 for test; ships with scikit-learn.

The images of the UCI optical recognition set, scaled to [0, 1]. The test set is a fixed stratified
quarter, the same for every seed.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from .source import Source


def read() -> Source:
    """All 1,797 images, x (n, 1, 8, 8)."""
    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[:, None]
    split = train_test_split(
        images, digits.target.astype("int64"), test_size=0.25, random_state=0, stratify=digits.target
    )
    x, test_x, y, test_y = map(torch.from_numpy, split)
    return Source(x, y, (test_x, test_y), classes=10)

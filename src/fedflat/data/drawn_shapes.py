"""Pictures of shapes, drawn from a seed, with the class of each pixel: a small set for segmentation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .dataset import LoadedDataset, SampleArrays

NAMES = ("background", "disc", "square", "triangle")
SIZE = 24  # height and width in pixels
USERS, TRAIN, TEST = 20, 30, 10  # number of users, and of pictures of each
SHAPES = 3  # in a picture; a later one covers earlier ones
SKEW = 0.5  # of the Dirichlet distribution of each user's shares of the three shapes
NOISE = 12  # standard deviation of a pixel's brightness, of 255


def drawn_shapes(seed: int = 0) -> LoadedDataset:
    """Draw the pictures of all users, uint8 (n, 1, 24, 24), and their classes, int64 (n, 24, 24).

    Users differ in how often each shape occurs, and in the brightness of their background. Shapes are brighter than the
    background, and their brightness says nothing about their class.
    """
    rng, parts = np.random.default_rng(seed), []
    for _ in range(USERS):
        shares, ground = rng.dirichlet([SKEW] * (len(NAMES) - 1)), rng.integers(20, 120)
        parts += [_picture(rng, shares, int(ground)) for _ in range(TRAIN + TEST)]
    x, y = (torch.from_numpy(np.stack(some)) for some in zip(*parts, strict=True))
    user, place = np.divmod(np.arange(len(y)), TRAIN + TEST)
    train, test = (SampleArrays(x[rows], y[rows], user=user[rows]) for rows in (place < TRAIN, place >= TRAIN))
    users = tuple(f"user {i:02}" for i in range(USERS))
    return LoadedDataset(train, test, len(NAMES), task="segmentation", class_names=NAMES, users=users)


def _picture(
    rng: np.random.Generator, shares: NDArray[np.float64], ground: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw one picture (1, 24, 24), and the class of each pixel (24, 24)."""
    light, classes = np.full((SIZE, SIZE), ground), np.zeros((SIZE, SIZE), dtype=np.int64)
    for _ in range(SHAPES):
        kind, (row, column) = rng.choice(len(shares), p=shares), rng.integers(4, SIZE - 4, 2)
        radius, brightness = rng.integers(3, 7), ground + rng.integers(50, 120)
        down, right = np.indices((SIZE, SIZE)) - np.array([row, column])[:, None, None]
        inside = (
            down**2 + right**2 <= radius**2,
            np.maximum(abs(down), abs(right)) <= radius,
            (abs(down) <= radius) & (2 * abs(right) <= down + radius),
        )[kind]
        light[inside], classes[inside] = brightness, kind + 1
    noisy = light + rng.normal(0, NOISE, light.shape)
    return noisy.round().clip(0, 255).astype(np.uint8)[None], classes

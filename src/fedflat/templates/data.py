"""A data set of your own: `fedflat run --data.name data.py:example --data.clients 10`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Pair = tuple[NDArray[Any], NDArray[Any]]


def example() -> tuple[Pair, Pair]:
    """Return the training and the test samples, each x (n, *shape) and class indices y (n,).

    Replace the body, such as by `np.load(Path(__file__).parent / "mine.npz")`. The samples are split over the
    clients by `--partition`; without a test part, return (x, y) alone.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=600)
    x = (rng.normal(size=(600, 8)) + y[:, None]).astype("float32")
    return (x[:500], y[:500]), (x[500:], y[500:])

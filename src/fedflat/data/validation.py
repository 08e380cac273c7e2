"""Samples that a client keeps apart, to measure the model on and not to train on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import InputError
from .federated import FederatedData, Holdings, Index


def hold_out(data: FederatedData, share: float, rng: np.random.Generator) -> FederatedData:
    """`data` with a random `share` of each client's samples as its validation set, at least one on each side.

    The validation samples so have the client's own label distribution. A sample that a client holds
    twice goes to one side only. Raises InputError for a client with fewer than two different samples.
    """
    split = [_split(mine, share, rng, i) for i, mine in enumerate(Holdings(data.members, data.offsets).parts())]
    train, held_out = (Holdings.of(parts) for parts in zip(*split, strict=True))
    return replace(data, members=train.members, offsets=train.offsets, validation=held_out)


def _split(mine: Index, share: float, rng: np.random.Generator, client: int) -> tuple[Index, Index]:
    different = np.unique(mine)
    if len(different) < 2:
        raise InputError(f"data.validation = {share} leaves nothing to train on at client {client}, which holds "
                         f"{len(different)} sample(s)")  # fmt: skip
    number = min(max(1, round(share * len(different))), len(different) - 1)
    apart = rng.choice(different, number, replace=False)
    out = np.isin(mine, apart)
    return mine[~out], np.sort(apart)

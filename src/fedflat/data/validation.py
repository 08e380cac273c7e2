"""Validation sets of clients: samples that a client does not train on but measures the model on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import InputError
from .federated import FederatedData, Holdings, Members


def hold_out(data: FederatedData, share: float, rng: np.random.Generator) -> FederatedData:
    """`data` with a random `share` of each client's samples as its validation set; neither set of a client is empty.

    The validation samples are drawn from the client's own samples, so they have its label distribution. All copies of
    a sample that a client holds twice are in the same set. Raises InputError for a client with fewer than two
    different samples.
    """
    parts = Holdings(data.members, data.offsets).parts()
    split = [_split(own, share, rng, i) for i, own in enumerate(parts)]
    train, held_out = (Holdings.of(parts) for parts in zip(*split, strict=True))
    return replace(data, members=train.members, offsets=train.offsets, validation=held_out)


def _split(own: Members, share: float, rng: np.random.Generator, client: int) -> tuple[Members, Members]:
    """The training and the validation samples of one client."""
    different = np.unique(own)
    if len(different) < 2:
        raise InputError(f"data.validation = {share} leaves nothing to train on at client {client}, which holds "
                         f"{len(different)} sample(s)")  # fmt: skip
    number = min(max(1, round(share * len(different))), len(different) - 1)
    validation = rng.choice(different, number, replace=False)
    return own[~np.isin(own, validation)], np.sort(validation)

"""What a partition scheme is, and the drawing that several schemes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import dataclass_transform

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from ...core.hyper import check, hyper
from ..federated import Index


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Partition(ABC):
    """A way to split n labelled samples over clients; its parameters are fields."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def split(self, labels: Index, classes: int, clients: int, rng: np.random.Generator) -> list[Index]:
        """The sample indices of every client, from `labels` (n,); every client gets at least one sample."""

    def __str__(self) -> str:
        """The scheme and its parameters in words, e.g. `Dirichlet(alpha=0.1)`."""
        values = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({values})"


def equal_sizes(n: int, clients: int) -> Index:
    """n // clients for everyone, and one more for the first n % clients; raises ValueError if n < clients."""
    if n < clients:
        raise InputError(f"data.clients = {clients} is more than the {n} training samples")
    return np.full(clients, n // clients, dtype=np.int64) + (np.arange(clients) < n % clients)


def draw_by_prior(labels: Index, priors: NDArray[np.float64], rng: np.random.Generator) -> list[Index]:
    """Equal sizes; each client draws classes from its own prior until it is full, without replacement.

    `priors` is (clients, classes). Samples are dealt one at a time to a random client that is not
    full (Acar et al., 2021). When a class runs out it leaves every prior; a client whose prior is
    then empty draws from what is left, in proportion. Every sample is used exactly once.
    """
    clients, classes = priors.shape
    pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in range(classes)]
    left = np.array([len(pool) for pool in pools])
    taken: list[list[int]] = [[] for _ in range(clients)]
    for client in rng.permutation(np.repeat(np.arange(clients), equal_sizes(len(labels), clients))):
        prior = np.where(left > 0, priors[client], 0.0)
        prior = prior if prior.sum() > 0 else left.astype(float)
        label = np.searchsorted(prior.cumsum(), rng.random() * prior.sum(), side="right")
        taken[client].append(pools[label].pop())
        left[label] -= 1
    return [np.array(sorted(mine), dtype=np.int64) for mine in taken]

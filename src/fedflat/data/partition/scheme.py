"""The interface of partition schemes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import dataclass_transform

import numpy as np

from ...core.errors import InputError
from ...core.hyper import check, hyper
from ..federated import Index


@dataclass(frozen=True)
class Samples:
    """What a scheme may use of n samples: the label of each and, if the data have them, its domain and its user."""

    labels: Index  # (n,) class indices
    classes: int
    domain: Index | None = None  # (n,) domain ids
    domains: tuple[str, ...] = ()  # the name of every domain id
    user: Index | None = None  # (n,) user ids

    def __post_init__(self) -> None:
        """Raises InputError where an id is missing or a domain has no name."""
        for name, ids in (("domain", self.domain), ("user", self.user)):
            if ids is not None and len(ids) != len(self):
                raise InputError(f"samples: {name} has {len(ids)} entries for {len(self)} labels")
        if (
            self.domain is not None
            and len(self.domain)
            and not 0 <= self.domain.min() <= self.domain.max() < len(self.domains)
        ):
            raise InputError(f"samples: domain has ids outside the {len(self.domains)} domains")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Partition(ABC):
    """A way to split n labelled samples over clients; its parameters are fields."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        """The sample indices of every client, ascending; every client gets at least one sample.

        Raises InputError, naming the field, for a split that cannot be made.
        """

    def __str__(self) -> str:
        """The scheme and its parameters, e.g. `Dirichlet(alpha=0.1)`."""
        values = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({values})"


def equal_sizes(n: int, clients: int) -> Index:
    """n // clients for every client, plus 1 for the first n % clients: (clients,). Raises InputError if n < clients."""
    if n < clients:
        raise InputError(f"data.clients = {clients} is more than the {n} training samples")
    return np.full(clients, n // clients, dtype=np.int64) + (np.arange(clients) < n % clients)


def cut(samples: Index, clients: int) -> list[Index]:
    """`samples` (n,) in their order, cut into `clients` parts of equal sizes, each ascending."""
    ends = np.cumsum(equal_sizes(len(samples), clients))[:-1]
    return [np.sort(part) for part in np.split(samples, ends)]

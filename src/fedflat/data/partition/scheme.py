"""The interface of partition schemes, and the random draws that several of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from math import nextafter
from typing import Any, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError
from ...core.hyper import by_name, check, hyper
from ...core.user_code import check_hook, class_title, own_errors_named
from ..types import Index, Members

Priors = NDArray[np.float64]  # (clients, classes): each client's weights of the classes; a row need not sum to 1


@dataclass(frozen=True)
class Samples:
    """The facts about n samples that a scheme may use: labels and, if the data have them, domains and users."""

    labels: Index  # (n,) class indices
    classes: int
    domain: Index | None = None  # (n,) domain ids
    domains: tuple[str, ...] = ()  # the name of every domain id
    user: Index | None = None  # (n,) user ids

    def __post_init__(self) -> None:
        """Raise InputError if a sample has no id, or a domain id has no name."""
        for name, ids in (("domain", self.domain), ("user", self.user)):
            if ids is not None and len(ids) != len(self):
                raise InputError(f"samples: {name} has {len(ids)} entries for {len(self)} labels")
        if self.domain is not None and ((self.domain < 0) | (self.domain >= len(self.domains))).any():
            raise InputError(f"samples: domain has ids outside the {len(self.domains)} domains")

    def __len__(self) -> int:
        return len(self.labels)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Partition(ABC):
    """A way to split n labelled samples over clients; its parameters are fields."""

    def __init_subclass__(cls) -> None:
        by_name(dataclass(frozen=True, kw_only=True)(cls), first_by_place=True)

    def __post_init__(self) -> None:
        check(self)

    @property
    def needs_classes(self) -> bool:
        """Whether the split depends on the labels, which then have to be class indices."""
        return True

    @abstractmethod
    def split(self, samples: Samples, clients: int, rng: np.random.Generator) -> list[Index]:
        """Return the sample indices of every client, ascending; every client gets at least one sample.

        Raises InputError, naming the field, for a split that cannot be made.
        """

    def __str__(self) -> str:
        """Return the scheme and its parameters, e.g. `Dirichlet(alpha=0.1)`."""
        values = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))  # type: ignore[arg-type]
        return f"{type(self).__name__}({values})"


def parts_of(scheme: Partition, samples: Samples, clients: int, rng: np.random.Generator) -> list[Members]:
    """Call `scheme.split` and check that it returns what its contract demands.

    A sample may belong to several clients, and twice to one, as in the schemes with refill. Raises InputError that
    names the partition if `split` takes other arguments, raises, or gives another number of clients than asked for, a
    client without samples, or indices that are not integers, not ascending, or out of range.
    """
    cls = type(scheme)
    who = f"partition {class_title(cls)}"
    try:
        check_hook(cls, Partition, "split")
    except InputError as error:
        raise InputError(f"{who}: {error}") from error
    with own_errors_named("partition", scheme, ["split"]):
        found: Any = scheme.split(samples, clients, rng)
    several = isinstance(found, Sequence | np.ndarray)
    if not several or len(found) != clients:
        given = f"{len(found)} clients" if several else "nothing" if found is None else f"a {type(found).__name__}"
        raise InputError(f"{who}: split must give the samples of {clients} clients (data.clients), it gives {given}")
    parts = [_array(part) for part in found]
    for client, part in enumerate(parts):
        if problem := _problem(part, len(samples)):
            raise InputError(f"{who}: split gives client {client} {problem}")
    return parts


def _array(part: Any) -> Members:
    """Convert the indices that a scheme returns for a client to an array; if that fails, return an array of objects."""
    try:
        return np.asarray(part)
    except ValueError:  # lists of several lengths
        return np.array(None)


def _problem(part: Members, samples: int) -> str | None:
    """Return what is wrong with the sample indices of a client; None if nothing is."""
    if part.ndim != 1 or (part.dtype.kind not in "iu" and len(part)):
        return f"an array of {part.dtype} and shape {part.shape}, not whole numbers of shape (n,)"
    if not len(part):
        return "no sample"
    if (part[1:] < part[:-1]).any():
        return "indices that do not ascend; sort them (np.sort)"
    if part[0] < 0 or part[-1] >= samples:
        return f"indices outside 0..{samples - 1}: {part[0] if part[0] < 0 else part[-1]}"
    return None


def equal_sizes(n: int, clients: int) -> Index:
    """Return the sizes of an even split of n samples, (clients,): n // clients, and one more for the first n % clients.

    Raises InputError if n < clients.
    """
    if n < clients:
        raise InputError(f"data.clients = {clients} is more than the {n} training samples")
    return np.full(clients, n // clients, dtype=np.int64) + (np.arange(clients) < n % clients)


def cut(samples: Index, clients: int) -> list[Index]:
    """Cut `samples` (n,) in their order into `clients` parts of equal sizes, each sorted."""
    ends = np.cumsum(equal_sizes(len(samples), clients))[:-1]
    return [np.sort(part) for part in np.split(samples, ends)]


def class_pools(samples: Samples, rng: np.random.Generator) -> list[Index]:
    """Return the samples of every class in random order, one array per class."""
    return [rng.permutation(np.flatnonzero(samples.labels == label)) for label in range(samples.classes)]


def dirichlet_shares(alpha: float, rows: int, columns: int, rng: np.random.Generator) -> Priors:
    """Draw each row of a matrix (rows, columns) from Dir(alpha, ..., alpha); each row sums to 1."""
    shares = rng.dirichlet(np.full(columns, alpha), rows)
    # The sum of gamma draws overflows for alpha beyond about 1e300, where all shares are equal.
    return np.where(shares.sum(1, keepdims=True) > 0, shares, 1 / columns)


def random_turns(samples: Samples, clients: int, rng: np.random.Generator) -> Index:
    """Return the clients in the random order in which they draw a sample, (n,); all draw equally often."""
    return rng.permutation(np.repeat(np.arange(clients), equal_sizes(len(samples), clients)))


def draw_without_replacement(pools: list[Index], priors: Priors, turns: Index, rng: np.random.Generator) -> list[Index]:
    """Draw samples for every client without replacement; client `turns[j]` draws in turn j.

    There are at most as many turns as samples. A class without remaining samples is removed from all priors, which are
    renormalised. A client whose prior has no class left draws from all remaining samples.
    """
    left, present = [pool.tolist() for pool in pools], np.array([len(pool) > 0 for pool in pools])
    drawn: list[list[int]] = [[] for _ in priors]
    # By client: the cumulative sums of its prior over the classes that are left, and their total. They are computed
    # again only after a class has run out. The total is numpy's pairwise sum, whose last bit may differ.
    known: dict[int, tuple[Sequence[float], float]] = {}
    for client, uniform in zip(turns.tolist(), rng.random(len(turns)).tolist(), strict=True):
        if client not in known:
            prior = np.where(present, priors[client], 0.0)
            known[client] = prior.cumsum().data, float(prior.sum())
        sums, total = known[client]
        if total <= 0:
            sums = list(accumulate(map(len, left)))
            total = float(sums[-1])
        # Rounding can reach the last sum, beyond which there is no class.
        label = bisect_right(sums, min(uniform * total, nextafter(sums[-1], 0)))
        drawn[client].append(left[label].pop())
        if not left[label]:
            present[label] = False
            known.clear()
    return [np.array(sorted(own), dtype=np.int64) for own in drawn]


def draw_with_refill(pools: list[Index], priors: Priors, turns: Index, rng: np.random.Generator) -> list[Index]:
    """Draw samples for every client, with reuse of exhausted classes; client `turns[j]` draws in turn j.

    The samples of a class are taken in the order of its pool, and again from the start when all are used. A client
    whose prior has no weight on a class with samples draws in proportion to the classes' sizes.
    """
    sizes, turns_of_clients = np.array([len(pool) for pool in pools]), places_by_client(turns, len(priors))
    labels, uniform = np.empty(len(turns), dtype=np.int64), rng.random(len(turns))
    for prior, own in zip(priors, turns_of_clients, strict=True):
        sums = np.where(sizes > 0, prior, 0.0).cumsum()
        sums = sums if sums[-1] > 0 else sizes.cumsum().astype(float)
        places = np.minimum(uniform[own] * sums[-1], np.nextafter(sums[-1], 0))
        labels[own] = np.searchsorted(sums, places, side="right")
    drawn = np.empty(len(turns), dtype=np.int64)
    for label, pool in enumerate(pools):
        own = np.flatnonzero(labels == label)
        drawn[own] = pool[np.arange(len(own)) % max(1, len(pool))]
    return [np.sort(drawn[own]) for own in turns_of_clients]


def places_by_client(client_at: Index, clients: int) -> list[Index]:
    """Return, for every client, the ascending positions at which `client_at` (n,) has the number of this client."""
    return np.split(np.argsort(client_at, kind="stable"), np.cumsum(np.bincount(client_at, minlength=clients))[:-1])

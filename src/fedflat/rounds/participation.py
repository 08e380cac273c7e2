"""Rules that choose the clients of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.hyper import plain_fields, plain_number
from ..data.federated import FederatedData, Holdings
from ..data.types import Index
from .local_training import Client
from .randomness import Purpose, generator, words


class Participation(ABC):
    """A rule that chooses the cohort of every round."""

    def __post_init__(self) -> None:
        """Convert numbers of numpy and torch to Python's."""
        plain_fields(self)

    @abstractmethod
    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        """Return the clients of round `t`, in rising order, at least one."""

    def check(self, clients: int, rounds: int) -> None:
        """Raise ValueError if the rule does not fit this number of clients or rounds."""
        return

    def steps_taken(self, seed: int, t: int, clients: Index, steps: Index) -> Index:
        """Return how many of its local `steps` (c,) each of `clients` (c,) takes in round `t`: (c,), at least one."""
        return steps

    def held_out(self, clients: int) -> Index:
        """Return the clients that never take part, in rising order."""
        return np.empty(0, dtype=np.int64)

    @property
    def names_clients(self) -> bool:
        """Whether the rule names single clients by number, so that the clients of a run must not change."""
        return False


@dataclass(frozen=True)
class Number(Participation):
    """Exactly `number` clients, drawn uniformly without replacement."""

    number: int

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        return np.sort(rng.choice(clients, self.number, replace=False, shuffle=False))

    def check(self, clients: int, rounds: int) -> None:
        if not 1 <= self.number <= clients:
            raise InputError(f"participation = {self.number} clients per round is not in 1..{clients}")


@dataclass(frozen=True)
class Share(Participation):
    """A fixed share of all clients, rounded to at least one client, drawn uniformly without replacement."""

    share: float

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        return Number(max(1, round(self.share * clients))).cohort(t, clients, rng)

    def check(self, clients: int, rounds: int) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"participation = {self.share} is not a share in (0, 1]")


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Every client takes part independently with probability `p`; an empty cohort is drawn again."""

    p: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.p, int | float) or not 0 < self.p <= 1:
            raise InputError(f"participation: Bernoulli p = {self.p!r} is not in (0, 1]")

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        # The number of active clients given that there is one: no redrawing, so no endless loop for tiny p.
        from scipy.special import bdtr  # the binomial distribution function; `scipy.stats` takes three times as long

        nobody = (1 - self.p) ** clients
        drawn = nobody + (1 - nobody) * (1 - rng.random())
        number = bisect_left(range(clients + 1), drawn, key=lambda k: float(bdtr(k, clients, self.p)))
        return Number(min(max(number, 1), clients)).cohort(t, clients, rng)


@dataclass(frozen=True)
class Explicit(Participation):
    """An explicit list of cohorts, one per round."""

    cohorts: Sequence[Sequence[int]]

    @property
    def names_clients(self) -> bool:
        return True

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        # Only a dry round after the last one needs more: it takes the last cohort again.
        return np.sort(np.asarray(self.cohorts[min(t, len(self.cohorts) - 1)], dtype=np.int64))

    def check(self, clients: int, rounds: int) -> None:
        if len(self.cohorts) < rounds:
            raise InputError(f"participation lists {len(self.cohorts)} rounds, but rounds = {rounds}")
        for t, cohort in enumerate(self.cohorts):
            if not cohort or len(set(cohort)) < len(cohort):
                raise InputError(f"participation of round {t} is empty or names a client twice: {list(cohort)}")
            if min(cohort) < 0 or max(cohort) >= clients:
                raise InputError(f"participation of round {t} names a client outside 0..{clients - 1}: {list(cohort)}")


@dataclass(frozen=True)
class Unreliable(Participation):
    """The cohorts of `rule` with dropouts and stragglers.

    A client that drops out has no part in the round, and costs no communication; at least one of a cohort replies. A
    straggler takes a number of its local steps that is uniform in 1, ..., K_i, as in FedProx (MLSys 2020, section 5.2).
    Dropouts and stragglers depend on seed, round and client alone, so that all methods have the same ones.
    """

    rule: Participation  # or a value that `participation` accepts, such as 0.2
    dropouts: float = 0.0  # chance that a client does not reply
    stragglers: float = 0.0  # probability that a client that replies is a straggler

    def __post_init__(self) -> None:
        """Check the fields. Raises InputError, naming the field, for an invalid chance or rule."""
        super().__post_init__()
        object.__setattr__(self, "rule", participation(self.rule))  # set only here: the class is frozen
        _check_chance("dropouts", self.dropouts)
        _check_chance("stragglers", self.stragglers)

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        chosen = self.rule.cohort(t, clients, rng)
        if not self.dropouts:
            return chosen
        answers = rng.random(len(chosen)) >= self.dropouts
        answers[rng.integers(len(chosen))] |= not answers.any()
        return chosen[answers]

    def check(self, clients: int, rounds: int) -> None:
        self.rule.check(clients, rounds)

    def steps_taken(self, seed: int, t: int, clients: Index, steps: Index) -> Index:
        if not self.stragglers:
            return steps
        late, share = words(seed, Purpose.STRAGGLERS, t, clients, np.arange(2)[:, None]) / 2**64  # uniform in [0, 1]
        taken = np.minimum(1 + np.floor(share * steps).astype(np.int64), steps)
        return np.where(late < self.stragglers, taken, steps)

    def held_out(self, clients: int) -> Index:
        return self.rule.held_out(clients)

    @property
    def names_clients(self) -> bool:
        return self.rule.names_clients


@dataclass(frozen=True)
class HeldOut(Participation):
    """The cohorts that `rule` draws from the clients that are not held out; a `share` of all clients is held out.

    Held-out clients never take part. The model is evaluated on their samples: the gap to the clients that train is the
    participation gap of Yuan et al. (ICLR 2022). Held-out clients are chosen at random, the same for every seed.
    """

    rule: Participation  # or a value that `participation` accepts, such as 0.2
    share: float

    def __post_init__(self) -> None:
        """Check the fields. Raises InputError for an invalid share or rule."""
        super().__post_init__()
        object.__setattr__(self, "rule", participation(self.rule))  # set only here: the class is frozen
        _check_chance("held_out", self.share)
        if isinstance(self.rule, Explicit):
            raise InputError("participation: held_out does not go with listed cohorts; list others")

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        seen = np.setdiff1d(np.arange(clients), self.held_out(clients))
        return seen[self.rule.cohort(t, len(seen), rng)]

    def check(self, clients: int, rounds: int) -> None:
        held_out = len(self.held_out(clients))
        if not 0 < held_out < clients:
            raise InputError(f"participation: held_out = {self.share} is {held_out} of {clients} clients")
        self.rule.check(clients - held_out, rounds)

    def steps_taken(self, seed: int, t: int, clients: Index, steps: Index) -> Index:
        return self.rule.steps_taken(seed, t, clients, steps)

    def held_out(self, clients: int) -> Index:
        order = np.random.default_rng(0).permutation(clients)
        return np.sort(order[: round(self.share * clients)])

    @property
    def names_clients(self) -> bool:
        return True


def _check_chance(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"participation: {name} = {value!r} is not in [0, 1)")


def participation(rule: Any) -> Participation:
    """Make a rule from a user's value: a share (0.1), a number per round (10), cohorts ([[0, 1], ...]) or a rule."""
    rule = plain_number(rule)
    if isinstance(rule, Participation):
        return rule
    if isinstance(rule, Integral) and not isinstance(rule, bool):
        return Number(int(rule))
    if isinstance(rule, float):
        return Share(rule)
    try:
        cohorts = [[plain_number(i) for i in cohort] for cohort in rule]
    except TypeError:
        cohorts = []
    are_clients = all(isinstance(i, Integral) and not isinstance(i, bool) for cohort in cohorts for i in cohort)
    if isinstance(rule, str | dict) or not cohorts or not are_clients:
        allowed = "a share, a number per round, a list of cohorts such as [[0, 1], [1, 2]], or Bernoulli(p)"
        raise InputError(f"participation must be {allowed}, got {rule!r}")
    return Explicit([[int(i) for i in cohort] for cohort in cohorts])


@dataclass(frozen=True)
class PooledCohort(Participation):
    """Client 0 in every round, with as many local steps as the cohort of `rule` would take together."""

    rule: Participation
    client: Client
    sizes: Index  # samples of each client that `rule` chooses from, (clients,)

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        return np.zeros(1, dtype=np.int64)

    def steps_taken(self, seed: int, t: int, clients: Index, steps: Index) -> Index:
        cohort = self.rule.cohort(t, len(self.sizes), generator(seed, Purpose.COHORT, t))
        taken = self.rule.steps_taken(seed, t, cohort, self.client.local_steps(self.sizes[cohort]))
        total: Index = taken.sum(keepdims=True)
        return total


def pooled(data: FederatedData, client: Client, rule: Participation) -> tuple[FederatedData, PooledCohort]:
    """Merge all clients that are not held out into a single client; return the merged data and its cohorts."""
    taking_part = np.setdiff1d(np.arange(data.clients), rule.held_out(data.clients))
    parts = Holdings(data.members, data.offsets).parts()
    members = np.unique(np.concatenate([parts[i] for i in taking_part]))
    pool = replace(data, members=members, offsets=np.array([0, len(members)]), validation=None)
    return pool, PooledCohort(rule, client, data.sizes)

"""The private rounds of a run: their sampler, their noise and their accountant are one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...core.errors import InputError
from ...core.method import Context, Method
from ...core.wrapper import label_of
from ...data.federated import Index
from ..cost import full_passes_per_round, gradients_per_step
from ..local_training import Client
from ..participation import Participation
from .accountant import epsilon, noise_for
from .private_mean import PrivateMean
from .randomness import poisson_sample, seeded_key, system_key
from .settings import Privacy

MOST_DELTA = 1.0  # times one over the clients: a mechanism that shows a client at random has as much


@dataclass(frozen=True)
class Poisson(Participation):
    """Every client independently with probability `rate`; rounds without anybody happen."""

    rate: float

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        """Clients as a private round may have them; those of a run are drawn by `PrivateRounds`, not by its seed."""
        return np.flatnonzero(rng.random(clients) < self.rate)


class PrivateRounds:
    """Draws who takes part, makes the mean of a round, and says what the rounds so far have spent."""

    def __init__(
        self, privacy: Privacy, method: Method, client: Client, clients: int, rounds: int, seed: int,
        shared: Callable[[Any], Any] = lambda key: key,
    ) -> None:  # fmt: skip
        """`rounds` are planned; `shared` gives all ranks what the first one has drawn, as JSON.

        Raises InputError, naming the setting, for what cannot be private, or would spend more than is allowed.
        """
        _check(privacy, method, client, clients)
        noise = privacy.noise_multiplier or noise_for(privacy.epsilon, privacy.delta, privacy.rate, rounds)
        self.privacy, self._noise = privacy, noise
        self.rule, self.clients = Poisson(privacy.rate), clients
        self._seed, self._shared = seed, shared
        self._client, self._steps = client, client.steps or 1
        self._drawn: tuple[int, bytes] | None = None  # the round that has been drawn, and its key
        self.check_budget(rounds)

    @property
    def expected(self) -> float:
        """How many clients take part in a round on average; every sum is divided by it."""
        return self.privacy.rate * self.clients

    @property
    def known_of_a_round(self) -> tuple[int, float]:
        """How many clients take part, and what share of all, as far as methods may know: on average."""
        return max(1, round(self.expected)), self.privacy.rate

    def expected_gradients(self, method: Method, sizes: Index) -> float:
        """How many minibatch gradients a round takes on average, of clients with `sizes` samples (clients,)."""
        full = full_passes_per_round(method) * int(self._client.batches_per_epoch(sizes).sum())
        return self.privacy.rate * (self.clients * self._steps * gradients_per_step(method) + full)

    def cohort(self, t: int) -> Index:
        """The clients of round `t`, the next one, in rising order, maybe nobody; every rank must ask."""
        return poisson_sample(self._key(t), self.privacy.rate, self.clients)

    def mean(self, method: Method, like: Tensor, ctx: Context) -> PrivateMean:
        """What adds up the records of the round of `ctx`; `like` (d,)."""
        key = self._key(ctx.t)
        return PrivateMean(method, like, ctx, self._steps, self.privacy.clip, self._noise, self.expected, key)

    def forget(self) -> None:
        """Forget the key of the next round, so that another one is drawn."""
        self._drawn = None

    def settings(self) -> dict[str, str]:
        """What the rounds depend on; noise that was solved for depends on how many are planned."""
        return {"privacy": repr(self.privacy), "noise_multiplier": f"{self._noise:g}"}

    def epsilon(self, rounds: int) -> float:
        """What so many rounds spend, for one client added or removed."""
        return epsilon(self.privacy.rate, self._noise, rounds, self.privacy.delta)

    def spent(self, rounds: int) -> dict[str, float]:
        """What so many rounds spend, as results and checkpoints have it."""
        replaced = epsilon(self.privacy.rate, self._noise, rounds, self.privacy.delta, "REPLACE_ONE")
        return {"epsilon": self.epsilon(rounds), "epsilon_replace_one": replaced, "delta": self.privacy.delta,
                "noise_multiplier": self._noise}  # fmt: skip

    def check_budget(self, rounds: int) -> None:
        """Raise InputError if so many rounds spend more than the run may."""
        needed = self.epsilon(rounds)
        if needed > self.privacy.epsilon:
            raise InputError(
                f"privacy: {rounds} rounds with noise_multiplier = {self._noise:g} spend epsilon = {needed:.4g}, and "
                f"privacy.epsilon allows {self.privacy.epsilon:g}; set fewer rounds, or more noise"
            )

    def _key(self, t: int) -> bytes:
        if self.privacy.noise == "seeded-not-private":
            return seeded_key(self._seed, t)
        if self._drawn is None or self._drawn[0] != t:
            self._drawn = t, bytes.fromhex(self._shared(system_key().hex()))
        return self._drawn[1]


def _check(privacy: Privacy, method: Method, client: Client, clients: int) -> None:
    """Raise InputError, naming the setting, for what cannot be private."""
    if method.training != "federated":
        raise InputError(f"privacy: {label_of(method)} is {method.training} training, in which clients send nothing")
    if client.steps is None:
        raise InputError("privacy needs client.steps: with epochs, how many steps a client takes tells its samples")
    if privacy.delta * clients > MOST_DELTA:
        raise InputError(f"privacy.delta = {privacy.delta:g} is more than one over the {clients} clients: "
                         "such a delta allows to show a client's data")  # fmt: skip

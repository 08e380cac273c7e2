"""The private rounds of a run: their sampler, their noise and their accountant are one object."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from ...core.errors import InputError
from ...core.method import Context, Method
from ...core.wrapper import label_of
from ...data.types import Index
from ..checkpoint import DamagedError
from ..cost import full_passes_per_round, gradients_per_step
from ..local_training import Client
from ..participation import Participation
from ..settings import table_of
from .accountant import Neighbours, epsilon, noise_for
from .private_mean import PrivateMean
from .randomness import KEY_BYTES, derived_key, poisson_sample, seeded_key, system_key
from .release_log import Release, add_to_log, log_of, read_log
from .settings import Privacy

_RUN = re.compile(r"[0-9a-f]{16}")
MOST_DELTA = 1.0  # times one over the clients: a mechanism that shows a client at random has as much


@dataclass(frozen=True)
class Poisson(Participation):
    """Every client independently with probability `rate`; rounds without anybody happen."""

    rate: float

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        """Clients as a private round may have them; those of a run are drawn by `PrivateRounds`, not by its seed."""
        return np.flatnonzero(rng.random(clients) < self.rate)


@dataclass(frozen=True)
class RoundKey:
    """The secret of a round, from which those of later rounds follow, and those of earlier ones do not."""

    run: str  # a name of the run, 16 hexadecimal digits, which tells nothing of its keys
    t: int
    key: bytes

    def of(self, t: int) -> RoundKey:
        """The secret of round `t`, this one or a later one. Raises ValueError for an earlier one."""
        if t < self.t:
            raise ValueError(f"the key of round {t} does not follow from that of round {self.t}")
        key = self.key
        for _ in range(self.t, t):
            key = derived_key(key, b"next round")
        return RoundKey(self.run, t, key)


class PrivateRounds:
    """Draws who takes part, makes the mean of a round, and says what the rounds so far have spent.

    All that is drawn in a round follows from its `RoundKey`, and the noise from the sum that it is added to as well: a
    round that is computed again has the same cohort, and for the same sum the same noise. Another sum has another one,
    and counts as a further release. The key is kept in checkpoints, and the releases in a log beside them.
    """

    def __init__(
        self, privacy: Privacy, method: Method, client: Client, clients: int, rounds: int, seed: int,
        shared: Callable[[Any], Any] = lambda key: key, writes: bool = True,
    ) -> None:  # fmt: skip
        """`rounds` are planned; `shared` gives all ranks what the first one has drawn, as JSON, and only that `writes`.

        Raises InputError, naming the setting, for what cannot be private, or would spend more than is allowed.
        """
        _check(privacy, method, client, clients)
        noise = privacy.noise_multiplier or noise_for(privacy.epsilon, privacy.delta, privacy.rate, rounds)
        self.privacy, self._noise = privacy, noise
        self.rule, self.clients = Poisson(privacy.rate), clients
        self._seed, self._shared, self._writes, self._planned = seed, shared, writes, rounds
        self._client, self._steps = client, client.steps or 1
        self._secret: RoundKey | None = None  # of the latest round that was asked for
        self._released: frozenset[Release] = frozenset()
        self._folders: frozenset[Path] = frozenset()  # that have states of this run
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

    @property
    def is_secret(self) -> bool:
        """Whether keys come from the operating system."""
        return self.privacy.noise == "system"

    def cohort(self, t: int) -> Index:
        """The clients of round `t`, the next one, in rising order, maybe nobody; every rank must ask."""
        return poisson_sample(self._key(t, b"cohort"), self.privacy.rate, self.clients)

    def mean(self, method: Method, like: Tensor, ctx: Context) -> PrivateMean:
        """What adds up the records of the round of `ctx`; `like` (d,)."""

        def noise_key(digest: bytes) -> bytes:
            return self._key(ctx.t, b"noise" + digest)

        return PrivateMean(method, like, ctx, self._steps, self.privacy.clip, self._noise, self.expected, noise_key)

    def release(self, t: int, mean: PrivateMean) -> None:
        """Note that the sum of round `t` is released: on disk, where states are, before its noise can be drawn.

        Nothing is counted twice. Every rank must call it. Raises InputError if it is a further sum of a round, and the
        planned rounds would then spend more than the run may.
        """
        if not self.is_secret:
            return
        folders = [folder for folder in self._folders if self._writes and folder.is_dir()]
        logs = [log_of(folder, self._round_key(t).run) for folder in folders]
        tag = self._key(t, b"sum" + mean.digest()).hex()[:32]
        released = self._released.union({(t, tag)}, *(read_log(log) for log in logs))
        self.check_budget(self._planned, released)
        self._released = released.union(*(add_to_log(log, released) for log in logs))
        self.check_budget(self._planned)  # another process may have continued the same state meanwhile

    def kept(self, t: int) -> dict[str, Any]:
        """What a state after `t` rounds keeps of keys and releases; the key is secret. Every rank must ask."""
        if not self.is_secret:
            return {}
        secret = self._round_key(t)
        return {"run": secret.run, "key": secret.key.hex(), "releases": len(self._released)}

    def log_in(self, folder: Path) -> None:
        """Keep the log of releases in `folder`, too, before a state is written there."""
        if self._secret is not None:
            add_to_log(log_of(folder, self._secret.run), self._released)
            self._folders |= {folder.absolute()}

    def restored(self, kept: Any, t: int, path: Path) -> Self:
        """The private rounds that go on after `t` rounds, from what the checkpoint `path` has `kept`.

        Raises DamagedError if it has no key, InputError if the log beside it is missing or incomplete.
        """
        new = copy(self)
        if not self.is_secret:
            return new
        try:
            secret, number = RoundKey(kept["run"], t, bytes.fromhex(kept["key"])), int(kept["releases"])
            if not _RUN.fullmatch(secret.run) or len(secret.key) != KEY_BYTES:
                raise ValueError(secret.run)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedError(f"checkpoint {path} has no key of its private rounds") from error
        log = log_of(path.parent, secret.run)
        new._secret, new._released, new._folders = secret, read_log(log), frozenset({path.parent.absolute()})
        if len(new._released) < number:
            raise InputError(f"{log} is damaged: it has {len(new._released)} of {number} releases before {path.name}")
        return new

    def settings(self) -> dict[str, Any]:
        """Return a table of what the rounds depend on; noise that was solved for depends on how many are planned."""
        return table_of(self.privacy) | {"solved_noise": f"{self._noise:g}"}

    def epsilon(self, rounds: int) -> float:
        """What so many rounds have spent, for one client added or removed, in all continuations that are known of."""
        return self._epsilon(rounds, self._released)

    def spent(self, rounds: int) -> dict[str, float]:
        """What so many rounds have spent, or as many as another continuation had, as results and checkpoints say it."""
        rounds = max([rounds, *(t + 1 for t, _ in self._released)])
        return {"epsilon": self.epsilon(rounds),
                "epsilon_replace_one": self._epsilon(rounds, self._released, "REPLACE_ONE"),
                "delta": self.privacy.delta, "noise_multiplier": self._noise}  # fmt: skip

    def check_budget(self, rounds: int, released: frozenset[Release] | None = None) -> None:
        """Raise InputError if so many rounds, with what was `released`, spend more than the run may."""
        released = self._released if released is None else released
        rounds = max([rounds, *(t + 1 for t, _ in released)])
        needed, again = self._epsilon(rounds, released), len(_again(released, rounds))
        if needed > self.privacy.epsilon:
            further = f", {again} of them released again with another sum," if again else ""
            remedy = "go on where they were released first" if again else "set fewer rounds, or more noise"
            raise InputError(
                f"privacy: {rounds} rounds{further} with noise_multiplier = {self._noise:g} spend epsilon = "
                f"{needed:.4g}, and privacy.epsilon allows {self.privacy.epsilon:g}; {remedy}"
            )

    def _epsilon(
        self, rounds: int, released: frozenset[Release], neighbours: Neighbours = "ADD_OR_REMOVE_ONE"
    ) -> float:
        again = _again(released, rounds)
        return epsilon(self.privacy.rate, self._noise, rounds, self.privacy.delta, neighbours, again=again)

    def _key(self, t: int, purpose: bytes) -> bytes:
        """The key of round `t` for one purpose; one that the seed tells is the same for all."""
        return derived_key(self._round_key(t).key, purpose) if self.is_secret else seeded_key(self._seed, t)

    def _round_key(self, t: int) -> RoundKey:
        if self._secret is None:
            key = bytes.fromhex(self._shared(system_key().hex()))
            self._secret = RoundKey(derived_key(key, b"run").hex()[:16], 0, key)
        self._secret = self._secret.of(t)
        return self._secret


def _again(released: frozenset[Release], rounds: int) -> tuple[int, ...]:
    """How many sums were released, of each of the first `rounds` of which it was more than one, in rising order."""
    numbers = Counter(t for t, _ in released if t < rounds)
    return tuple(sorted(number for number in numbers.values() if number > 1))


def _check(privacy: Privacy, method: Method, client: Client, clients: int) -> None:
    """Raise InputError, naming the setting, for what cannot be private."""
    if method.training != "federated":
        raise InputError(f"privacy: {label_of(method)} is {method.training} training, in which clients send nothing")
    if client.steps is None:
        raise InputError("privacy needs client.steps: with epochs, how many steps a client takes tells its samples")
    if privacy.delta * clients > MOST_DELTA:
        raise InputError(f"privacy.delta = {privacy.delta:g} is more than one over the {clients} clients: "
                         "such a delta allows to show a client's data")  # fmt: skip

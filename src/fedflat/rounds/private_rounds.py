"""The private rounds of a run: their sampler, their noise and their accountant are one object."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..core.errors import InputError
from ..core.method import Context, Method
from ..core.wrapper import chain, label_of
from ..data.types import Index
from ..files import PRIVATE, read_bytes, system_errors
from ..operating_system import flush_folder, lock, open_no_link
from .accountant import Neighbours, Privacy, epsilon, noise_for
from .checkpoint import DamagedError
from .cost import full_passes_per_round, gradients_per_step
from .local_training import Client
from .participation import Participation
from .private_mean import KEY_BYTES, PrivateMean, derived_key, poisson_sample, seeded_key, system_key
from .settings import table_of

_RUN = re.compile(r"[0-9a-f]{16}")
MOST_DELTA = 1.0  # largest delta times number of clients; publishing the data of one random client reaches it


@dataclass(frozen=True)
class Poisson(Participation):
    """Every client takes part independently with probability `rate`; cohorts may be empty."""

    rate: float

    def cohort(self, t: int, clients: int, rng: np.random.Generator) -> Index:
        """Draw an example cohort; `PrivateRounds` draws the cohorts of a run."""
        return np.flatnonzero(rng.random(clients) < self.rate)


@dataclass(frozen=True)
class RoundKey:
    """The secret key of a round; the keys of later rounds follow from it, the keys of earlier rounds do not."""

    run: str  # a name of the run, 16 hexadecimal digits, that reveals none of its keys
    t: int
    key: bytes

    def of(self, t: int) -> RoundKey:
        """Return the key of round `t`, this round or a later one. Raises ValueError for an earlier round."""
        if t < self.t:
            raise ValueError(f"the key of round {t} does not follow from that of round {self.t}")
        key = self.key
        for _ in range(self.t, t):
            key = derived_key(key, b"next round")
        return RoundKey(self.run, t, key)


class PrivateRounds:
    """Draws the cohort of a round, makes its mean, and computes the privacy spent so far.

    All random numbers of a round follow from its `RoundKey`; the noise also depends on the sum. A round that is
    computed again has the same cohort. If its sum is the same, the noise is the same, too; a different sum gets
    different noise and counts as a further release. The key is kept in checkpoints, and the releases in a log beside
    the checkpoints.
    """

    def __init__(
        self, privacy: Privacy, method: Method, client: Client, clients: int, rounds: int, seed: int,
        shared: Callable[[Any], Any] = lambda key: key, writes: bool = True,
    ) -> None:  # fmt: skip
        """Plan `rounds` rounds.

        shared: returns on each rank the value given on rank 0, sent as JSON. writes: whether this process writes logs,
        True on rank 0 only.

        Raises InputError, naming the setting, if the run cannot be private or would exceed its budget.
        """
        _check(privacy, method, client, clients)
        noise = privacy.noise_multiplier or noise_for(privacy.epsilon, privacy.delta, privacy.rate, rounds)
        self.privacy, self._noise = privacy, noise
        self.rule, self.clients = Poisson(privacy.rate), clients
        self._seed, self._shared, self._writes, self._planned = seed, shared, writes, rounds
        self._client, self._steps = client, client.steps or 1
        self._secret: RoundKey | None = None  # of the latest requested round
        self._released: frozenset[Release] = frozenset()
        self._folders: frozenset[Path] = frozenset()  # folders with checkpoints of this run
        self.check_budget(rounds)

    @property
    def expected(self) -> float:
        """Expected number of clients in a round, the divisor of every sum."""
        return self.privacy.rate * self.clients

    @property
    def known_of_a_round(self) -> tuple[int, float]:
        """Average number of clients in a round, and their share of all clients: a method may know only these."""
        return max(1, round(self.expected)), self.privacy.rate

    def expected_gradients(self, method: Method, sizes: Index) -> float:
        """Return the expected number of minibatch gradients in a round of clients with `sizes` samples (clients,)."""
        full = full_passes_per_round(method) * int(self._client.batches_per_epoch(sizes).sum())
        return self.privacy.rate * (self.clients * self._steps * gradients_per_step(method) + full)

    @property
    def is_secret(self) -> bool:
        """Whether keys come from the operating system and not from the seed."""
        return self.privacy.noise == "system"

    def cohort(self, t: int) -> Index:
        """Draw the clients of round `t`, the next one, in rising order; may be empty. All ranks must call this."""
        return poisson_sample(self._key(t, b"cohort"), self.privacy.rate, self.clients)

    def mean(self, method: Method, down: Any, ctx: Context) -> PrivateMean:
        """Return a mean without records yet, for the round of `ctx`, in which clients receive `down`."""

        def noise_key(digest: bytes) -> bytes:
            return self._key(ctx.t, b"noise" + digest)

        public = down if self.privacy.clip_without_public else None
        return PrivateMean(
            method, down.w, ctx, self._steps, self.privacy.clip, self._noise, self.expected, noise_key, public
        )

    def release(self, t: int, mean: PrivateMean) -> None:
        """Record the release of the sum of round `t`, on disk beside the checkpoints, before its noise can be drawn.

        No release is counted twice. All ranks must call this. Raises InputError if the round has already released a
        different sum and the planned rounds would exceed the budget with a further one.
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
        """Return the key and the number of releases, for a checkpoint after `t` rounds; the key is secret.

        Empty if keys come from the seed. All ranks must call this.
        """
        if not self.is_secret:
            return {}
        secret = self._round_key(t)
        return {"run": secret.run, "key": secret.key.hex(), "releases": len(self._released)}

    def log_in(self, folder: Path) -> None:
        """Write the log of releases also to `folder`; call this before a checkpoint is written there."""
        if self._secret is not None:
            add_to_log(log_of(folder, self._secret.run), self._released)
            self._folders |= {folder.absolute()}

    def restored(self, kept: Any, t: int, path: Path) -> Self:
        """Return private rounds that continue after `t` rounds, from the `kept` values of the checkpoint `path`.

        Raises DamagedError if the checkpoint has no key, InputError if the log beside it is missing or incomplete.
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
        """Return a table of the settings that the rounds depend on, with the noise multiplier, given or computed."""
        return table_of(self.privacy) | {"solved_noise": f"{self._noise:g}"}

    def epsilon(self, rounds: int) -> float:
        """Return the epsilon of the first `rounds` rounds, for one client added or removed; every release counts."""
        return self._epsilon(rounds, self._released)

    def spent(self, rounds: int) -> dict[str, float]:
        """Return the privacy spent, for results and checkpoints.

        All rounds up to `rounds` count or, if later rounds have been released, all up to the last released one.
        """
        rounds = max([rounds, *(t + 1 for t, _ in self._released)])
        return {"epsilon": self.epsilon(rounds),
                "epsilon_replace_one": self._epsilon(rounds, self._released, "REPLACE_ONE"),
                "delta": self.privacy.delta, "noise_multiplier": self._noise}  # fmt: skip

    def check_budget(self, rounds: int, released: frozenset[Release] | None = None) -> None:
        """Raise InputError if `rounds` rounds with the `released` sums (default: all known ones) exceed the budget."""
        released = self._released if released is None else released
        rounds = max([rounds, *(t + 1 for t, _ in released)])
        needed, again = self._epsilon(rounds, released), len(_again(released, rounds))
        if needed > self.privacy.epsilon:
            further = f", {again} of them released again with another sum," if again else ""
            remedy = "continue from where they were released first" if again else "set fewer rounds, or more noise"
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
        """Return the key of round `t` for one purpose; a key from the seed is the same for all purposes."""
        return derived_key(self._round_key(t).key, purpose) if self.is_secret else seeded_key(self._seed, t)

    def _round_key(self, t: int) -> RoundKey:
        if self._secret is None:
            key = bytes.fromhex(self._shared(system_key().hex()))
            self._secret = RoundKey(derived_key(key, b"run").hex()[:16], 0, key)
        self._secret = self._secret.of(t)
        return self._secret


def _again(released: frozenset[Release], rounds: int) -> tuple[int, ...]:
    """Return the numbers of released sums, rising, of the rounds before `rounds` that released several."""
    numbers = Counter(t for t, _ in released if t < rounds)
    return tuple(sorted(number for number in numbers.values() if number > 1))


def check_private_settings(weights: str, alternates: bool, is_screened: bool) -> None:
    """Raise InputError, naming the setting, for settings that a private run cannot have.

    weights: of clients in the mean. alternates: whether the factors of adapters are trained in turns. is_screened:
    whether there is a guard, or an attack.
    """
    if weights != "uniform":
        raise InputError(f"weights = {weights!r} does not go with privacy: weights tell clients' numbers of samples")
    if alternates:
        raise InputError("adapter.mode = 'alternate' does not go with privacy: the factor at rest would get noise; "
                         "set mode = 'both' or 'freeze_a'")  # fmt: skip
    if is_screened:
        raise InputError("privacy does not go with guard or attack: what is refused depends on single records, which "
                         "no accountant counts; privacy.clip bounds every record")  # fmt: skip


def _check(privacy: Privacy, method: Method, client: Client, clients: int) -> None:
    """Raise InputError, naming the setting, if the run cannot be private."""
    if method.training != "federated":
        raise InputError(f"privacy: {label_of(method)} is {method.training} training, in which clients send nothing")
    if client.steps is None:
        raise InputError("privacy needs client.steps: with epochs, the number of steps reveals the number of samples")
    if privacy.clip_without_public and type(chain(method)[-1]).public is Method.public:
        raise InputError(f"privacy.clip_without_public does not go with {label_of(method)}: the server "
                         "computes no part of what its clients send")  # fmt: skip
    if privacy.delta * clients > MOST_DELTA:
        raise InputError(f"privacy.delta = {privacy.delta:g} is more than one over the {clients} clients: "
                         "such a delta would allow a client's data to be published")  # fmt: skip


Release = tuple[int, str]  # a round, and the tag of its released sum, 32 hexadecimal digits
_LINE = re.compile(r"((\d{1,9}) ([0-9a-f]{32})) ([0-9a-f]{16})")
_PATTERN = "released-*.log"


def log_of(folder: Path, run: str) -> Path:
    """Return the path of the log of a run's releases in `folder`."""
    return folder / _PATTERN.replace("*", run)


def logs_in(folder: Path) -> list[Path]:
    """List the logs in `folder`, of all runs that have or had checkpoints there."""
    return sorted(folder.glob(_PATTERN))


def read_log(path: Path) -> frozenset[Release]:
    """Read the releases in the log `path`. Raises InputError, naming the line, if it is missing or damaged."""
    return _releases(_complete_lines(read_bytes(path)), path)


def add_to_log(path: Path, releases: frozenset[Release]) -> frozenset[Release]:
    """Add new `releases` to the log `path`; return the content of the log, which is then on disk.

    The file is created if it is missing, and only its owner can read it. Raises InputError if it cannot be written.
    """
    with system_errors(path, "written"):
        handle = open_no_link(path, os.O_RDWR | os.O_CREAT, PRIVATE)
        with os.fdopen(handle, "r+b") as file:
            lock(handle, wait=True)  # until it is closed: another process may continue the same state
            complete = _complete_lines(file.read())
            known = _releases(complete, path)
            file.seek(len(complete))
            file.truncate()
            file.write("".join(_line(one) for one in sorted(releases - known)).encode())
            file.flush()
            os.fsync(handle)
        flush_folder(path.parent)
    return known | releases


def _complete_lines(content: bytes) -> bytes:
    """Remove an unfinished last line, left by a process that was killed before it released the sum."""
    return content[: content.rfind(b"\n") + 1]


def _releases(content: bytes, path: Path) -> frozenset[Release]:
    found = set()
    for number, line in enumerate(content.decode("ascii", "replace").splitlines(keepends=True), 1):
        match = _LINE.fullmatch(line[:-1])
        if match is None or line != _line((int(match[2]), match[3])):
            raise InputError(f"{path} is damaged in line {number}: the releases of its private run are not known")
        found.add((int(match[2]), match[3]))
    return frozenset(found)


def _line(release: Release) -> str:
    text = f"{release[0]} {release[1]}"
    return f"{text} {hashlib.sha256(text.encode()).hexdigest()[:16]}\n"

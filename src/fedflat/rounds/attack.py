"""Simulated attacks: which clients attack, and which messages they send."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.hyper import by_name, check, hyper
from ..core.method import Method
from ..core.records import Record
from ..data.federated import FederatedData
from ..data.types import Index
from .randomness import Purpose, generator

COLLUDING = ("inner-product", "little-is-enough")  # attacks that use the messages of the honest clients of the round


@by_name
@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack by a share of the clients, which the experiment's seed selects for all rounds.

    Attackers train as honest clients do and send other messages. They do not know the guard. In the attacks
    `inner-product` and `little-is-enough` they know the mean and the standard deviation of the honest clients' messages
    of the round, by coordinate.
    """

    kind: Literal["sign-flip", "scaling", "noise", "label-flip", "inner-product", "little-is-enough"] = hyper(
        "sign-flip", "what attackers send, see docs/guards.md"
    )
    share: float = hyper(0.1, "fraction of clients that attack (at least one)", low=0, high=1, open_low=True)
    scale: float = hyper(
        10.0, "factor on the own record (sign-flip, scaling), on its size as noise (noise), or on the mean of the "
        "honest ones (inner-product)", low=0, open_low=True,
    )  # fmt: skip
    deviations: float | None = hyper(
        None, "little-is-enough: standard deviations away from the honest mean; none takes the paper's number", low=0
    )
    claims: int = hyper(
        1, "samples that attackers claim to have, as a multiple of theirs; weights and steps follow",
        low=1, high=1_000_000,
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check the fields. Raises InputError, naming the field."""
        check(self, "attack")
        if inf in (self.scale, self.deviations):
            raise InputError("attack: scale and deviations are finite numbers")

    def attackers(self, clients: Index, seed: int) -> Index:
        """Draw the attackers among `clients` (c,), in rising order."""
        number = max(1, round(self.share * len(clients)))
        return np.sort(generator(seed, Purpose.ATTACK).choice(clients, number, replace=False))


def with_flipped_labels(data: FederatedData, attackers: Index) -> FederatedData:
    """Give each attacker copies of its samples with class C - 1 - y in place of y.

    Raises InputError for data without classes.
    """
    if data.task != "classification":
        raise InputError(f"attack: label-flip is for classes, and the data have {data.task}")
    places = np.concatenate([np.arange(*data.offsets[i : i + 2]) for i in attackers])
    owned = torch.from_numpy(data.members[places].astype(np.int64))
    members = data.members.astype(np.int64)
    members[places] = len(data.y) + np.arange(len(places))
    x = torch.cat([data.x, data.x[owned.to(data.x.device)]])
    y = torch.cat([data.y, data.classes - 1 - data.y[owned.to(data.y.device)]])
    return replace(data, x=x, y=y, members=members, contents=None)


class Attackers:
    """The attackers of a run, and the messages that they send in place of honest ones."""

    def __init__(self, attack: Attack, method: Method, clients: Index, seed: int) -> None:
        """Draw attackers from `clients` (c,), those that may take part. Raises InputError for an unsuitable method."""
        if not isinstance(attack, Attack):
            raise InputError(f"attack must be an Attack such as Attack(kind='sign-flip', share=0.2), got {attack!r}")
        if method.training != "federated":
            raise InputError(f"attack: {type(method).__name__} is {method.training} training, in which no client sends")
        if not set(method.up.__match_args__) <= set(method.mean.__match_args__):
            raise InputError(f"attack: {type(method).__name__} averages other records than clients send")
        self.attack, self._method, self._seed = attack, method, seed
        self.clients = attack.attackers(clients, seed)

    @property
    def collude(self) -> bool:
        """Whether the attack needs the messages of the honest clients of the round."""
        return self.attack.kind in COLLUDING

    def among(self, clients: Index) -> Index:
        """Return the indices of attackers in `clients` (c,)."""
        return np.flatnonzero(np.isin(clients, self.clients))

    def claimed(self, clients: Index, numbers: Tensor) -> Tensor:
        """Multiply `numbers` (c, 1), which derive from sample counts, by the factors by which attackers exaggerate."""
        factors = np.where(np.isin(clients, self.clients), self.attack.claims, 1)
        return numbers * torch.from_numpy(factors)[:, None].to(numbers)

    def sent(self, computed: Record, t: int, clients: Index, known: HonestMoments) -> Any:
        """Return the messages of the attackers `clients` (c,) in round `t`: the method's `up`, (c, width).

        computed: the records that the server would average if the attackers were honest, (c, width).
        """
        up = self.message(computed)
        # A negative variance would give itself away: running statistics are sent as computed.
        unchanged = {name: getattr(up, name) for name in up.marked("running_statistics")}
        return replace(self._attacked(up, t, clients, known), **unchanged)

    def _attacked(self, up: Any, t: int, clients: Index, known: HonestMoments) -> Any:
        """Return the messages of `sent` without an exception for any field."""
        kind, scale = self.attack.kind, self.attack.scale
        if kind in ("sign-flip", "scaling"):
            return up.map(lambda x: (-scale if kind == "sign-flip" else scale) * x)
        if kind == "noise":
            return self._noise(up, t, clients)
        if self.collude:
            wanted = {name: self._against(known, name) for name in up.tensors()}
            return replace(up, **{name: wanted[name].to(x).expand_as(x) for name, x in up.tensors().items()})
        return up

    def message(self, received: Record) -> Any:
        """Return the message from which the server computed `received`."""
        return self._method.up(**{name: getattr(received, name) for name in self._method.up.__match_args__})

    def _noise(self, up: Record, t: int, clients: Index) -> Any:
        """Draw Gaussian noise for each field of each client's message.

        The standard deviation of the noise is `scale` times the root mean square of the field.
        """
        draws = [generator(self._seed, Purpose.ATTACK, t, int(client)) for client in clients]
        found = {}
        for name, x in up.tensors().items():
            noise = np.stack([draw.standard_normal(x.shape[-1]) for draw in draws])
            size = x.double().square().mean(-1, keepdim=True).sqrt() if x.shape[-1] else x.double()
            found[name] = (self.attack.scale * size * torch.from_numpy(noise).to(x.device)).to(x.dtype)
        return replace(up, **found)

    def _against(self, known: HonestMoments, name: str) -> Tensor:
        """Return one field of the message that all colluding attackers send, (width,)."""
        if self.attack.kind == "inner-product":
            return -self.attack.scale * known.mean(name)
        z = known.deviations if self.attack.deviations is None else self.attack.deviations
        return known.mean(name) - z * known.std(name)


class HonestMoments:
    """Mean and standard deviation of the honest clients' messages in a round, by coordinate, with equal weights."""

    def __init__(self, clients: int, attackers: int) -> None:
        """Start a round of `clients` clients, of whom `attackers` are attackers."""
        self.clients, self.attackers, self._number = clients, attackers, 0
        self._sums: dict[str, Tensor] = {}
        self._squares: dict[str, Tensor] = {}

    def add(self, up: Record) -> None:
        """Add the messages (c, width) of honest clients."""
        for name, x in up.tensors().items():
            wide = x.double()
            self._sums[name] = self._sums.get(name, torch.zeros_like(wide[0])) + wide.sum(0)
            self._squares[name] = self._squares.get(name, torch.zeros_like(wide[0])) + wide.square().sum(0)
        self._number += len(x)

    def mean(self, name: str) -> Tensor:
        """Return the mean of a field, (width,); zero if there is no honest client."""
        return self._sums[name] / self._number if self._number else torch.zeros(1, dtype=torch.float64)

    def std(self, name: str) -> Tensor:
        """Return the population standard deviation of a field, (width,)."""
        if not self._number:
            return torch.zeros(1, dtype=torch.float64)
        return (self._squares[name] / self._number - self.mean(name).square()).clamp(min=0).sqrt()

    @property
    def deviations(self) -> float:
        """The shift of "A Little Is Enough" (Baruch et al., NeurIPS 2019), in standard deviations of honest messages.

        With n clients and m attackers, the attack needs s = n // 2 + 1 - m supporters. The shift is the largest z such
        that at least a share s / (n - m) of honest messages, if normally distributed, lies beyond z standard deviations
        on one side of the mean. It is at least 0.
        """
        honest = self.clients - self.attackers
        supporters = max(1, self.clients // 2 + 1 - self.attackers)
        share = (honest - supporters) / honest if honest else 0.0
        return NormalDist().inv_cdf(share) if share > 0.5 else 0.0

"""The clients' records as they arrive at the server in a simulated round: changed by attackers, screened by a guard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.method import Context, Method
from ..data.types import Index
from ..rounds.attack import Attackers, HonestMoments
from ..rounds.guard import GuardState


@dataclass(frozen=True)
class ReceivedChunk:
    """The records of a chunk as the server sees them; rows are clients."""

    received: Any  # (c, width)
    steps: Tensor  # local steps that the clients claim, (c, 1)
    lr_factors: Tensor  # sums of the factors on their step sizes, as claimed, (c, 1)
    accepted: Tensor  # the rows that count, ascending


class Arrivals:
    """The records of one round, chunk by chunk: attackers change theirs, the guard bounds or refuses records."""

    def __init__(
        self, method: Method, ctx: Context, clients: Index, like: Tensor,
        guard: GuardState | None, attackers: Attackers | None, inflates_steps: bool,
    ) -> None:  # fmt: skip
        """Prepare the round of `clients` (c,).

        like: a tensor on the device. inflates_steps: whether claimed samples determine the number of local steps.
        """
        self._method, self._ctx, self._guard, self._attackers = method, ctx, guard, attackers
        self._inflates_steps = inflates_steps and attackers is not None and attackers.attack.claims > 1
        self.attackers = 0 if attackers is None else len(attackers.among(clients))
        self._known = HonestMoments(len(clients), self.attackers)
        # For each client (c,): 1 if its record counts; 1 if it was clipped; its norm as sent; its norm after clipping.
        self.of_clients = list(like.new_zeros(4, len(clients), dtype=torch.float64).unbind())

    def in_order(self, clients: Index, places: Index) -> list[Index]:
        """Split the `places` of clients into groups that are trained one after the other.

        Honest clients come first if attackers use the honest messages.
        """
        if self._attackers is None or not self._attackers.collude:
            return [places]
        bad = np.isin(clients[places], self._attackers.clients)
        return [places[~bad], places[bad]]

    def take(self, clients: Index, places: Index, received: Any, steps: Tensor, lr_factors: Tensor) -> ReceivedChunk:
        """Attack and screen the results of the clients at `places` of the round."""
        if self._attackers is not None:
            if self._inflates_steps:
                steps, lr_factors = (self._attackers.claimed(clients[places], x) for x in (steps, lr_factors))
            received = self._attacked(clients[places], received, steps, lr_factors)
        accepted = torch.ones(len(places), dtype=torch.bool, device=steps.device)
        if self._guard is not None:
            screened = self._guard.screen(received, lr_factors * self._ctx.lr)
            received, accepted = screened.record, screened.accepted
            rows = torch.from_numpy(places).to(steps.device)
            for numbers, new in zip(
                self.of_clients[1:], (screened.clipped, screened.sent, screened.norms), strict=True
            ):
                numbers[rows] = new.double().nan_to_num(nan=inf, posinf=inf)
        self.of_clients[0][torch.from_numpy(places).to(steps.device)] = accepted.double()
        return ReceivedChunk(received, steps, lr_factors, accepted.nonzero()[:, 0])

    def accepted(self) -> Tensor:
        """Return the mask of clients whose records are averaged, (c,) bool. Raises InputError if it selects none."""
        accepted = self.of_clients[0] > 0
        if self._guard is not None and not bool(accepted.any()):
            sent = self.of_clients[2]
            raise InputError(
                f"round {self._ctx.t}: the guard refused all {len(accepted)} clients, whose norms are "
                f"{float(sent.min()):.3g} to {float(sent.max()):.3g}, and at most {self._guard.bound:.3g} is allowed; "
                "allow more, or set guard.action = 'clip'"
            )
        return accepted

    def next_guard(self) -> GuardState | None:
        """Return the guard for the next round."""
        if self._guard is None:
            return None
        return self._guard.updated(self.of_clients[3][self.of_clients[0] > 0].tolist())

    def metrics(self) -> dict[str, float]:
        """Return the numbers of attackers in the round, and of clients that the guard clipped and refused."""
        numbers = {"attackers": float(self.attackers)} if self._attackers is not None else {}
        if self._guard is not None:
            accepted, clipped = (float(x.sum()) for x in self.of_clients[:2])
            numbers |= {"clipped": clipped, "refused": len(self.of_clients[0]) - accepted}
        return numbers

    def _attacked(self, clients: Index, received: Any, steps: Tensor, lr_factors: Tensor) -> Any:
        """Replace the records of the attackers in a chunk by what the server receives from their attack."""
        assert self._attackers is not None  # noqa: S101 (for the type checker)
        bad = self._attackers.among(clients)
        if self._attackers.collude and len(bad) < len(clients):
            honest = torch.from_numpy(np.setdiff1d(np.arange(len(clients)), bad)).to(steps.device)
            self._known.add(self._attackers.message(received).map(lambda x: x[honest]))
        if not len(bad):
            return received
        rows = torch.from_numpy(bad).to(steps.device)
        computed = received.map(lambda x: x[rows])
        up = self._attackers.sent(computed, self._ctx.t, clients[bad], self._known)
        ctx = replace(self._ctx, steps=steps[rows], lr_sum=lr_factors[rows] * self._ctx.lr)
        sent = self._method.receive(up, ctx)
        return received.map(lambda x, new: x.index_copy(0, rows, new.to(x.dtype)), sent)

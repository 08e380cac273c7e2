"""Clients whose losses are quadratics, run through the package's local loop: optima and paths have closed forms."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedflat.core.descent import Descent
from fedflat.core.local import LocalResult, local_round
from fedflat.core.method import Context, Method


@dataclass
class Quadratics:
    """F_i(w) = 1/2 (w - b_i)' diag(a_i) (w - b_i); a, b are (clients, d)."""

    a: Tensor
    b: Tensor
    steps: int = 4
    lr: float = 0.1
    asked: list[Tensor] = field(default_factory=list)  # where gradients were asked, each (cohort, d)

    @property
    def optimum(self) -> Tensor:
        """The minimum of the mean of all F_i."""
        return (self.a * self.b).mean(0) / self.a.mean(0)

    def gradient(self, w: Tensor, clients: list[int]) -> Tensor:
        self.asked.append(w)
        return self.a[clients] * (w - self.b[clients])

    def local(self, method: Method, down, client, clients: list[int], t: int = 0) -> LocalResult:
        """Local training of some clients at once."""
        grad = lambda w: self.gradient(w, clients)  # noqa: E731
        ctx = Context(t, self.lr, len(clients) / len(self.b))
        return local_round(method, down, client, [(grad, len(clients))] * self.steps, ctx, Descent(self.lr))

    def run(self, method: Method, rounds: int, cohorts: list[list[int]] | None = None):
        """(server, {client: record}) after some rounds; everybody takes part unless cohorts are given."""
        server = method.init_server(torch.zeros(self.b.shape[1], dtype=self.b.dtype))
        kept: dict[int, object] = {}
        for t in range(rounds):
            cohort = cohorts[t] if cohorts else list(range(len(self.b)))
            server, kept = self.round(method, server, kept, cohort, t)
        return server, kept

    def round(self, method: Method, server, kept, cohort: list[int], t: int):
        down = method.broadcast(server).map(lambda x: x.expand(len(cohort), -1))
        first = method.init_client(down)
        rows = [kept.get(i, first.map(lambda x, j=j: x[j])) for j, i in enumerate(cohort)]
        client = rows[0].map(lambda *xs: torch.stack(xs), *rows[1:])
        result = self.local(method, down, client, cohort, t)
        passing = {name: torch.zeros_like(getattr(client, name)) for name in method.client.marked("per_round")}
        after = replace(result.client, **passing)
        kept = kept | {i: after.map(lambda x, j=j: x[j]) for j, i in enumerate(cohort)}
        ctx = Context(t, self.lr, len(cohort) / len(self.b), result.steps, result.steps * self.lr)
        received = method.receive(result.up, ctx)
        ctx = Context(t, self.lr, ctx.share, result.steps.mean(0), result.steps.mean(0) * self.lr)
        return method.update(server, received.map(lambda x: x.mean(0)), ctx), kept


def two_quadratics(**changes) -> Quadratics:
    """Two clients of unlike curvature and optimum, so that plain averaging ends off the global optimum."""
    a = torch.tensor([[1.0, 3.0], [4.0, 0.5]], dtype=torch.float64)
    b = torch.tensor([[2.0, -1.0], [-1.0, 3.0]], dtype=torch.float64)
    return Quadratics(a, b, **changes)

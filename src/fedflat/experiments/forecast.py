"""What a run will cost, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.method import Method
from ..data.federated import Index
from ..engine.peak import peak_bytes
from ..engine.simulation import Simulation
from ..rounds.cost import full_passes_per_round, gradients_per_step, method_cost
from ..rounds.local_training import Client

SAMPLED_ROUNDS = 1000


@dataclass(frozen=True)
class Forecast:
    """Expected totals of a run."""

    parameters: int
    clients_per_round: float  # expected
    gradients: float  # minibatch gradients, all clients and rounds
    bytes_down: float
    bytes_up: float
    client_state_bytes: int  # once every client has taken part
    peak_bytes: int | None = None  # of memory, this process; None if not tried out

    def lines(self) -> list[str]:
        """The forecast as text, one a line."""
        return [
            f"model parameters      {self.parameters:,}",
            f"clients per round     {self.clients_per_round:g}",
            f"minibatch gradients   {self.gradients:,.0f}",
            f"sent to clients       {self.bytes_down / 1e6:,.1f} MB",
            f"sent to the server    {self.bytes_up / 1e6:,.1f} MB",
            f"kept for all clients  {self.client_state_bytes / 1e6:,.1f} MB",
            *([] if self.peak_bytes is None else [f"peak of memory        {self.peak_bytes / 1e6:,.0f} MB"]),
        ]


def forecast(sim: Simulation) -> Forecast:
    """What the rounds of `sim` will cost, for the cohorts that they will really have; memory from a few steps on trial.

    Of more than 1,000 rounds the first 1,000 stand for the others.
    """
    cohorts = [sim.cohort(t) for t in range(min(sim.rounds, SAMPLED_ROUNDS))]
    d, size = sim.objective.space.d, sim.w.element_size()
    expected = predicted(sim.method, sim.client, sim.data.sizes, cohorts, sim.rounds, d, size)
    return replace(expected, peak_bytes=peak_bytes(sim))


def predicted(
    method: Method, client: Client, sizes: Index, cohorts: Sequence[Index], rounds: int, d: int, number_bytes: int
) -> Forecast:
    """The cost of `rounds` rounds like `cohorts`, for clients with `sizes` samples and a model of `d` parameters."""
    scale = rounds / len(cohorts)
    cost = method_cost(method, d)
    messages = scale * sum(map(len, cohorts))
    steps = scale * sum(int(client.local_steps(sizes[cohort]).sum()) for cohort in cohorts)
    batches = scale * sum(int(client.batches_per_epoch(sizes[cohort]).sum()) for cohort in cohorts)
    return Forecast(
        parameters=d,
        clients_per_round=float(np.mean([len(cohort) for cohort in cohorts])),
        gradients=float(steps * gradients_per_step(method) + batches * full_passes_per_round(method)),
        bytes_down=float(messages * cost.down * number_bytes),
        bytes_up=float(messages * cost.up * number_bytes),
        client_state_bytes=len(sizes) * cost.client * number_bytes,
    )

"""What a run will cost, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..comm.cost import full_passes_per_round, gradients_per_step, method_cost
from ..engine.simulation import Simulation

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

    def lines(self) -> list[str]:
        """The forecast as text, one a line."""
        return [
            f"model parameters      {self.parameters:,}",
            f"clients per round     {self.clients_per_round:g}",
            f"minibatch gradients   {self.gradients:,.0f}",
            f"sent to clients       {self.bytes_down / 1e6:,.1f} MB",
            f"sent to the server    {self.bytes_up / 1e6:,.1f} MB",
            f"kept for all clients  {self.client_state_bytes / 1e6:,.1f} MB",
        ]


def forecast(sim: Simulation) -> Forecast:
    """What the rounds of `sim` will cost, for the cohorts that they will really have.

    Of more than 1,000 rounds the first 1,000 stand for the others.
    """
    cohorts = [sim.cohort(t) for t in range(min(sim.rounds, SAMPLED_ROUNDS))]
    scale = sim.rounds / len(cohorts)
    d, size = sim.objective.space.d, sim.w.element_size()
    cost = method_cost(sim.method, d)
    messages = scale * sum(map(len, cohorts))
    steps = scale * sum(int(sim.client.local_steps(sim.data.sizes[cohort]).sum()) for cohort in cohorts)
    sizes = [sim.data.sizes[cohort] for cohort in cohorts]
    batches = scale * sum(int(sim.client.batches_per_epoch(some).sum()) for some in sizes)
    return Forecast(
        parameters=d,
        clients_per_round=float(np.mean([len(cohort) for cohort in cohorts])),
        gradients=float(steps * gradients_per_step(sim.method) + batches * full_passes_per_round(sim.method)),
        bytes_down=float(messages * cost.down * size),
        bytes_up=float(messages * cost.up * size),
        client_state_bytes=sim.data.clients * cost.client * size,
    )

"""The cohort of centralised training: one client, which holds the samples of all clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..data.federated import FederatedData, Holdings
from ..data.types import Index
from .local_training import Client
from .participation import Participation
from .randomness import Purpose, generator


@dataclass(frozen=True)
class PooledCohort(Participation):
    """Client 0 in every round, which takes as many local steps as the whole cohort of `rule` would take."""

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
    """`data` with one client, which holds each sample of those that may take part once; and that client's cohorts."""
    taking_part = np.setdiff1d(np.arange(data.clients), rule.held_out(data.clients))
    parts = Holdings(data.members, data.offsets).parts()
    members = np.unique(np.concatenate([parts[i] for i in taking_part]))
    pool = replace(data, members=members, offsets=np.array([0, len(members)]), validation=None)
    return pool, PooledCohort(rule, client, data.sizes)

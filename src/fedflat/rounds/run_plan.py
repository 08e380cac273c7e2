"""What determines the rounds of a run besides the method, the model and the samples."""

from __future__ import annotations

from dataclasses import dataclass

from .guard import Guard
from .local_training import Client
from .participation import Participation, Share


@dataclass(frozen=True)
class RunPlan:
    """How clients train, which of them take part in each round, and how many rounds there are."""

    client: Client  # the settings of local training
    participation: Participation = Share(1.0)  # noqa: RUF009 (frozen)
    seed: int = 0  # of cohorts, batches and stragglers
    rounds: int = 0  # the planned number, for a method that depends on it
    guard: Guard | None = None  # bounds the norm and weight of clients' records

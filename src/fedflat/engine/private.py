"""What is particular about the simulation of a private run: what it cannot have, and what it does not report."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any

from ..adapters import LoRA
from ..core.errors import InputError
from ..core.method import Method
from ..rounds.attack import Attack
from ..rounds.guard import Guard
from ..rounds.local_training import Client
from ..rounds.privacy.accountant import Privacy
from ..rounds.privacy.private_rounds import PrivateRounds
from .ranks import Ranks

DEFAULT_PARTICIPATION = 1.0  # of a `Simulation`


def private_rounds(
    privacy: Any, method: Method, client: Client, clients: int, rounds: int, seed: int, ranks: Ranks, weights: str,
    participation: Any, adapter: LoRA | None, screening: Guard | Attack | None = None,
) -> PrivateRounds | None:  # fmt: skip
    """Return the sampler, noise and accountant of a private run; None for another one.

    Raises InputError, naming the setting, for what cannot be private.
    """
    if privacy is None:
        return None
    if not isinstance(privacy, Privacy):
        raise InputError(f"privacy must be fedflat.Privacy(...), got {privacy!r}")
    if participation != DEFAULT_PARTICIPATION:
        raise InputError(f"participation = {participation!r} does not go with privacy, whose clients take part "
                         "independently with the chance privacy.rate; leave participation out")  # fmt: skip
    if weights != "uniform":
        raise InputError(f"weights = {weights!r} does not go with privacy: weights tell clients' numbers of samples")
    if adapter is not None and adapter.mode == "alternate":
        raise InputError("adapter.mode = 'alternate' does not go with privacy: the factor at rest would get noise; "
                         "set mode = 'both' or 'freeze_a'")  # fmt: skip
    if screening is not None:
        raise InputError("privacy does not go with guard or attack: what is refused depends on single records, which "
                         "no accountant counts; privacy.clip bounds every record")  # fmt: skip
    shared = (lambda key: key) if ranks.number == 1 else ranks.first
    return PrivateRounds(privacy, method, client, clients, rounds, seed, shared, ranks.index == 0)


def without_client_values(summary: Mapping[str, float]) -> dict[str, float]:
    """`summary` without what is computed from clients' training samples; what every summary has is then NaN."""
    found = {name: value for name, value in summary.items() if not name.startswith("client_accuracy")}
    return found | {"train_loss": nan, "drift": nan}

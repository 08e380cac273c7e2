"""The terms of a federation's rounds."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ..core.errors import InputError
from ..rounds.guard import Guard


@dataclass(frozen=True)
class RoundTerms:
    """When a round ends, and which replies it accepts."""

    deadline: float = 600.0  # seconds for the replies of a round
    quorum: float = 0.5  # share of the cohort whose replies must be accepted, more than 0
    norm_multiple: float = 100.0  # `NormBounds.multiple`: at least 1, infinity is no bound
    secure_sum: float | None = None  # share of the cohort without whose help no sum is unmasked; None is no secure sum

    def __post_init__(self) -> None:
        if not self.deadline > 0:
            raise InputError(f"deadline must be more than 0 seconds, got {self.deadline}")
        if not 0 < self.quorum <= 1:
            raise InputError(f"quorum must be in (0, 1], got {self.quorum}")
        if not self.norm_multiple >= 1:
            raise InputError(f"norm-multiple must be at least 1, got {self.norm_multiple}")
        if self.secure_sum is not None and not 0.5 < self.secure_sum <= 1:
            raise InputError(f"secure-sum must be more than 0.5 and at most 1, got {self.secure_sum}")

    def check(self, guard: Guard | None) -> None:
        """Raise InputError, naming the key, for a bound that a server cannot check under a secure sum."""
        if self.secure_sum is None:
            return
        norms = guard is not None and guard.bounds_norms
        if guard is not None and norms and (guard.multiple is not None or guard.action == "refuse"):
            raise InputError("guard: the server sees no client's norm under secure-sum; set bound alone, to which "
                             "clients shorten what they send, with action = 'clip'")  # fmt: skip
        if not norms and isfinite(self.norm_multiple):
            raise InputError(
                "norm-multiple: under secure-sum the server sees no client's norm; set norm-multiple = inf"
            )

"""What a private run promises, and how; nothing here needs torch or `dp-accounting`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import Literal

from ...core.hyper import by_name, check, hyper

Noise = Literal["system", "seeded-not-private"]
LEAST_NOISE = 0.01  # below it epsilon is in the thousands, and the grid of `PrivateMean` would be finer than its sums
MOST_NOISE = 1e9  # times the largest clip over the least rate it still fits single precision


@by_name
@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Client-level (epsilon, delta)-differential privacy of all models that a run hands out; see docs/privacy.md."""

    epsilon: float = hyper(
        MISSING, "most that the run may spend, for one client added or removed", low=0, open_low=True, high=1e6
    )
    delta: float = hyper(
        MISSING, "chance that epsilon does not hold; well below one over the clients", low=0, open_low=True, high=0.5
    )
    clip: float = hyper(
        MISSING, "bound on the norm of all that a client sends, in the unit of parameters", low=1e-15, high=1e15
    )
    rate: float = hyper(MISSING, "chance of every client, independently, to take part in a round",
                        low=1e-9, high=1)  # fmt: skip
    noise_multiplier: float | None = hyper(
        None,
        "deviation of the noise on the sum, in clips; default: what spends epsilon in all rounds",
        low=LEAST_NOISE,
        high=MOST_NOISE,
    )
    noise: Noise = hyper("system", "where random numbers come from: the operating system, or for tests the seed")

    def __post_init__(self) -> None:
        """Raises InputError, naming the field, for a value out of range."""
        check(self, "privacy")

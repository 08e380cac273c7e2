"""What papers and released code say about a method, beside its equations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sources:
    """Published values, known departures and our readings of one method."""

    published: Mapping[str, str] = field(default_factory=dict)  # by field: "0.1 (FedSMOO), 0.05 (FedVSSAM)"
    departures: tuple[str, ...] = ()  # where released code, or a paper's own text, computes something else
    readings: tuple[str, ...] = ()  # how we read what a paper leaves open, or says in two ways
    # Communication relative to FedAvg as FedSMOO's Table 3 and FedLESAM's Tables 5, 7 and 9 charge it.
    charged: int | None = None

"""What papers and released code say about a method in addition to its equations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sources:
    """Published hyper-parameters of a method, known differences between papers and released code, and our readings."""

    published: Mapping[str, str] = field(default_factory=dict)  # by field: "0.1 (FedSMOO), 0.05 (FedVSSAM)"
    departures: tuple[str, ...] = ()  # where released code, or a paper's text, computes something else
    readings: tuple[str, ...] = ()  # how we read what a paper leaves open, or states in two ways
    # Communication relative to FedAvg as FedSMOO's Table 3 and FedLESAM's Tables 5, 7 and 9 count it.
    charged: int | None = None

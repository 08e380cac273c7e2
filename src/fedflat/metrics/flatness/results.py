"""Results of a measure: numbers with their errors, curves, and the protocol by which they were obtained."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["interval", "residual"]  # half of a 95 % interval, or a bound on the distance to an exact value


@dataclass(frozen=True)
class Measured:
    """A number and its error; an exact number has none."""

    value: float
    error: float | None = None  # in the unit of the value
    kind: Kind | None = None  # what the error is

    def __str__(self) -> str:
        """The number to three digits, with its error to two."""
        return f"{self.value:.3g}" + ("" if self.error is None else f" ± {self.error:.2g}")


def mean_with_interval(draws: NDArray[np.float64]) -> Measured:
    """The mean of independent draws (n,) with Student's 95 % interval; no error for a single draw."""
    n = len(draws)
    if n < 2:
        return Measured(float(draws.mean()))
    from scipy.stats import t as student  # here, because the import takes half a second

    half = float(student.ppf(0.975, n - 1)) * float(draws.std(ddof=1)) / sqrt(n)
    return Measured(float(draws.mean()), half, "interval")


@dataclass(frozen=True)
class Curve:
    """A measured function."""

    x: list[float]
    y: list[float]
    x_label: str  # with unit
    y_label: str
    error: list[float] | None = None  # half of 95 % intervals of y
    logarithmic: bool = False  # figures show y on a logarithmic axis


@dataclass(frozen=True)
class Finding:
    """The result of one measure on one model."""

    measure: str  # its name
    protocol: str  # how it was measured, in words, with the settings
    values: dict[str, Measured]
    curves: dict[str, Curve] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts, for a JSON file."""
        return asdict(self)

"""The interface of measures of flatness and of their results: numbers with errors, curves, and the protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from math import floor, isfinite, log10, sqrt
from typing import ClassVar, Literal, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from ...core.hyper import by_name, check, hyper
from ...core.progress import Steps
from .subject import Subject

Kind = Literal["interval", "residual"]  # half of a 95 % interval, or a bound on the distance to an exact value


@dataclass(frozen=True)
class Measured:
    """A value and its error; an exact value has no error."""

    value: float
    error: float | None = None  # in the unit of the value
    kind: Kind | None = None  # what the error is
    samples: tuple[int, int] | None = None  # samples used, and all training samples; None if all were used

    def __str__(self) -> str:
        """Format the number to the digits that its error supports, at most three, with the share of samples used."""
        number = f"{self.value:.3g}" if self.error is None else with_error(self.value, self.error)
        return number + self.subset

    @property
    def subset(self) -> str:
        """The samples used, as in ` (2,000 of 50,000)`; empty if all were used."""
        return "" if self.samples is None else f" ({self.samples[0]:,} of {self.samples[1]:,})"


def subsets(values: Iterable[Measured]) -> str:
    """Join the texts `subset` of `values`, each different text once."""
    return "".join(dict.fromkeys(value.subset for value in values))


def with_error(value: float, error: float) -> str:
    """Write a number and its error, to two digits of the error and the same decimal place: `1.2345 ± 0.0031`."""
    if not (isfinite(value) and isfinite(error)) or error <= 1e-6 * abs(value):
        return f"{value:.3g} ± {error:.2g}"
    size = max(abs(value), error)
    power = 0 if 1e-3 <= size < 1e6 else floor(log10(size))
    value, error = value / 10**power, float(f"{error / 10**power:.1e}")
    places = 1 - floor(log10(error))
    text = f"{round(value, places):.{max(0, places)}f} ± {error:.{max(0, places)}f}"
    return f"({text})e{power:+03d}" if power else text


def mean_with_interval(draws: NDArray[np.float64]) -> Measured:
    """Compute the mean of independent draws (n,) with Student's 95 % interval; a single draw has no interval."""
    n = len(draws)
    if n < 2:
        return Measured(float(draws.mean()))
    from scipy.special import stdtrit  # quantiles of Student's t; here, because scipy takes long to import

    half = float(stdtrit(n - 1, 0.975)) * float(draws.std(ddof=1)) / sqrt(n)
    return Measured(float(draws.mean()), half, "interval")


@dataclass(frozen=True)
class Curve:
    """A function that a measure has computed at some points, with the labels of its axes."""

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
    values: dict[str, Measured]  # by name; tables leave out values of a single layer, `NAME/LAYER`
    curves: dict[str, Curve] = field(default_factory=dict)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Measure(ABC):
    """One measure of flatness; the settings of its protocol are fields, its docstring is the definition."""

    precision: ClassVar[tuple[str, ...]] = ()  # settings that change the error of a value and not its definition
    unsaid: ClassVar[tuple[str, ...]] = ()  # settings that a protocol leaves out if they have default values
    needs_round: ClassVar[bool] = False  # whether the measure needs the last or the next round of a run

    @property
    def needs_adapter(self) -> bool:
        """Whether the measure requires a model with adapters."""
        return False

    def __init_subclass__(cls) -> None:
        by_name(dataclass(frozen=True, kw_only=True)(cls))

    def __post_init__(self) -> None:
        check(self)

    @property
    def suffix(self) -> str:
        """The end of the names of values, such as `(rho=0.1)`: the settings that differ from their defaults.

        Settings in `precision` are left out. The text is empty if no other setting differs.
        """
        defining = [f for f in fields(self) if f.name not in self.precision]  # type: ignore[arg-type]
        other = [f"{f.name}={getattr(self, f.name)}" for f in defining if getattr(self, f.name) != f.default]
        return f"({','.join(other)})" if other else ""

    def of(self, subject: Subject) -> Subject:
        """Return the subject to measure: at the trained iterate if `needs_round`, else at the served model."""
        return subject.training() if self.needs_round else subject

    @abstractmethod
    def measure(self, subject: Subject, progress: Steps) -> Finding:
        """Measure `subject`, which is not changed, and report progress: `progress(steps done, steps in all)`."""

    def coordinates(self, subject: Subject) -> str:
        """Describe the parameters that the measure varies, for the protocol; empty for all parameters of the model."""
        return ""

    def finding(
        self,
        subject: Subject,
        values: dict[str, Measured],
        curves: dict[str, Curve] | None = None,
        samples: str | None = None,
        used: int | None = None,
    ) -> Finding:
        """Make a finding: values and curves, and the protocol in words.

        The names of values and curves end with `suffix`.

        samples: the samples that were used, in words; by default the pooled samples of the subject, empty if none were
        used. used: the number of training samples in the loss; every value states this number if it is not that of all
        training samples.
        """
        used, all_ = len(subject.pooled) if samples is None else used, subject.total
        own = fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        said = [f.name for f in own if f.name not in self.unsaid or getattr(self, f.name) != f.default]
        settings = ", ".join(f"{name} = {getattr(self, name)}" for name in said)
        first = (type(self).__doc__ or "").strip().splitlines()[0].rstrip(".")
        samples = subject.samples if samples is None else samples
        parts = first, settings, self.coordinates(subject), samples, subject.statistics
        protocol = "; ".join(filter(None, parts))
        part = None if used is None or used == all_ else (used, all_)
        named = {f"{name}{self.suffix}": replace(value, samples=part) for name, value in values.items()}
        drawn = {f"{name}{self.suffix}": curve for name, curve in (curves or {}).items()}
        return Finding(type(self).__name__, protocol, named, drawn)


class LossMeasure(Measure):
    """A measure of the loss around the model, over the trained parameters or over merged weights."""

    unsaid: ClassVar[tuple[str, ...]] = ("space",)  # `coordinates` describes it

    space: Literal["trained", "merged"] = hyper(
        "trained",
        "what the loss is a function of: the trained parameters, with an adapter its factors and the head; or, with an "
        "adapter, the weights W + alpha / r B A of the adapted layers",
    )

    @property
    def needs_adapter(self) -> bool:
        return self.space == "merged"

    def of(self, subject: Subject) -> Subject:
        return subject.merged if self.space == "merged" else subject

    def coordinates(self, subject: Subject) -> str:
        return subject.coordinates

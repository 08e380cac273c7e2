"""The interface of measures of flatness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, dataclass_transform

from ...core.hyper import check, hyper
from .results import Curve, Finding, Measured
from .subject import Subject

StepCallback = Callable[[int, int], None]  # steps done, steps in all (an estimate if a rule decides when to stop)


def no_step_progress(done: int, total: int) -> None:
    """Ignore the progress of a measure."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Measure(ABC):
    """One measure of flatness; the settings of its protocol are fields, its docstring is the definition."""

    precision: ClassVar[tuple[str, ...]] = ()  # settings that change a number's error and not its definition
    needs_round: ClassVar[bool] = False  # it looks at the round that would follow: a method and its state

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def measure(self, subject: Subject, progress: StepCallback) -> Finding:
        """Measure `subject`, which is not changed, and report progress: `progress(steps done, steps in all)`."""

    def finding(
        self,
        subject: Subject,
        values: dict[str, Measured],
        curves: dict[str, Curve] | None = None,
        samples: str | None = None,
    ) -> Finding:
        """A finding: values and curves under names that contain the defining settings, and the protocol in words.

        `samples` names the samples that were used, by default the subject's pooled ones; empty if none were used.
        """
        settings = ", ".join(f"{f.name} = {getattr(self, f.name)}" for f in self._fields())
        first = (type(self).__doc__ or "").strip().splitlines()[0].rstrip(".")
        protocol = "; ".join(filter(None, (first, settings, subject.samples if samples is None else samples)))
        suffix = self._suffix()
        named = {f"{name}{suffix}": value for name, value in values.items()}
        return Finding(type(self).__name__, protocol, named, {f"{n}{suffix}": c for n, c in (curves or {}).items()})

    def _suffix(self) -> str:
        """The defining settings that differ from the default, e.g. `(rho=0.1)`; empty if none does."""
        defining = [f for f in self._fields() if f.name not in self.precision]
        other = [f"{f.name}={getattr(self, f.name)}" for f in defining if getattr(self, f.name) != f.default]
        return f"({','.join(other)})" if other else ""

    def _fields(self) -> tuple[Field[Any], ...]:
        return fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass

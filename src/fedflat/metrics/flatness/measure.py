"""What every measure of flatness has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, dataclass_transform

from ...core.hyper import check, hyper
from .measured import Curve, Finding, Measured
from .subject import Subject

StepCallback = Callable[[int, int], None]  # steps done, steps in all (an estimate where a rule decides when to stop)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(hyper,))
class Measure(ABC):
    """One measure of flatness; the settings of its protocol are fields, its docstring is the definition."""

    precision: ClassVar[tuple[str, ...]] = ()  # fields that make a number more certain and not another number
    needs_round: ClassVar[bool] = False  # it looks at the round that would follow, so a method and its state are needed

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def measure(self, subject: Subject, progress: StepCallback) -> Finding:
        """Measure `subject`, which is not changed, and tell `progress` how far it is."""

    def finding(
        self,
        subject: Subject,
        values: dict[str, Measured],
        curves: dict[str, Curve] | None = None,
        samples: str | None = None,
    ) -> Finding:
        """What was found, under names that tell settings apart, with the protocol in words.

        `samples` says which were used, where they are not the subject's pooled ones; empty if none were.
        """
        settings = ", ".join(f"{f.name} = {getattr(self, f.name)}" for f in self._fields())
        first = (type(self).__doc__ or "").strip().splitlines()[0].rstrip(".")
        words = "; ".join(filter(None, (first, settings, subject.samples if samples is None else samples)))
        own = self._suffix()
        named = {f"{name}{own}": value for name, value in values.items()}
        return Finding(type(self).__name__, words, named, {f"{n}{own}": c for n, c in (curves or {}).items()})

    def _suffix(self) -> str:
        """The defining settings that are not the default, e.g. `(rho=0.1)`; empty if there are none."""
        defining = [f for f in self._fields() if f.name not in self.precision]
        other = [f"{f.name}={getattr(self, f.name)}" for f in defining if getattr(self, f.name) != f.default]
        return f"({','.join(other)})" if other else ""

    def _fields(self) -> tuple[Field[Any], ...]:
        return fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass

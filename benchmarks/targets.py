"""The targets, each with the expression that computes its value from the measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .measurement import Kind, Measurements, Spread, ratio
from .record_store import PART as STORE
from .vectors import PREFIX as VECTORS


class Quantity(ABC):
    """Something that is computed from measurements."""

    unit: str  # of the value

    @abstractmethod
    def of(self, measured: Measurements) -> Spread | None:
        """Return its value; None if what it needs was not measured."""

    @abstractmethod
    def __str__(self) -> str:
        """Return what it is, in words."""


@dataclass(frozen=True)
class Ratio(Quantity):
    """One implementation's seconds over another's; both are (part, name)."""

    over: tuple[str, str]
    under: tuple[str, str]
    kind: Kind = "cpu"
    unit = ""

    def of(self, measured: Measurements) -> Spread | None:
        over, under = measured.find(*self.over), measured.find(*self.under)
        return ratio(over, under, self.kind) if over and under else None

    def __str__(self) -> str:
        return f"{self.over[1]} / {self.under[1]}" + (" (by the clock)" if self.kind == "wall" else "")


@dataclass(frozen=True)
class Plain(Quantity):
    """What one implementation took, in `unit`s of `size` seconds or bytes."""

    part: str
    name: str
    unit: str
    size: float
    kind: Kind = "cpu"

    def of(self, measured: Measurements) -> Spread | None:
        found = measured.find(self.part, self.name)
        values = found.values(self.kind) if found else []
        return Spread.of([value / self.size for value in values]) if values else None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class VectorShare(Quantity):
    """The most that any method computes beside its gradients, over the two gradients of a SAM step, per local step."""

    part: str
    unit = "%"

    def of(self, measured: Measurements) -> Spread | None:
        shares = self.shares(measured)
        return max(shares.values(), key=lambda share: share.median) if shares else None

    def shares(self, measured: Measurements) -> dict[str, Spread]:
        """Return per cent by method."""
        backprop = measured.find(self.part, "backprop")
        work = [one for one in measured.of(self.part) if one.name.startswith(VECTORS)]
        found = {one.name.removeprefix(VECTORS): ratio(one, backprop, "cpu") for one in work} if backprop else {}
        return {method: share.times(100 / 2) for method, share in found.items() if share}

    def __str__(self) -> str:
        return "most vector work of any method / two gradients"


@dataclass(frozen=True)
class Target:
    """A row of the table: what was promised."""

    row: int  # several rows may share a number
    work: str
    quantity: Quantity
    target: float  # the least that is accepted
    stretch: float | None = None  # the goal
    at_least: bool = False  # or at most

    def met(self, value: float, goal: float) -> bool:
        """Tell whether `value` reaches `goal`."""
        return value >= goal if self.at_least else value <= goal


def _ours(row: int, work: str, over: str, under: str, target: float, stretch: float | None) -> Target:
    """Return a target: at most this share of another implementation's seconds."""
    return Target(row, work, Ratio((work, over), (work, under)), target, stretch)


def _beats(
    row: int, over: tuple[str, str], under: tuple[str, str], target: float, stretch: float | None, kind: Kind = "cpu"
) -> Target:
    """Return a target: at least this many times as fast as another."""
    return Target(row, under[0], Ratio(over, under, kind), target, stretch, at_least=True)


FLSIM, PFL, FEDLAB, FLOWER = "FL-Simulator", "pfl-research", "FedLab", "Flower"
BLAZEFL, FLUKE = "BlazeFL", "fluke"

TARGETS: tuple[Target, ...] = (
    _ours(1, "W1", "FedAvg", "bare-best", 1.05, 1.02),
    _ours(2, "W1", "FedAvg", "bare-default", 0.80, 0.70),
    _ours(2, "W1", "FedAvg", "bare-tuned", 0.80, 0.70),
    _ours(3, "W1", "FedSAM", "FedAvg", 2.06, 2.02),
    _ours(4, "W1", "FedSMOO", "FedSAM", 1.05, 1.03),
    _ours(4, "W1", "FedGAMMA", "FedSAM", 1.05, 1.03),
    _ours(5, "W1", "FedLESAM", "FedAvg", 1.03, 1.01),
    *(_beats(6, ("W1", f"{FLSIM} {method}"), ("W1a", method), 1.45, 1.7)
      for method in ("FedAvg", "Scaffold", "FedSAM", "FedSMOO")),
    _beats(7, ("W1 full", f"{FLSIM} FedAvg"), ("W1", "FedAvg tested"), 6, 10),
    *(_beats(8, ("W1", f"{FLSIM} {method}"), ("W1a", f"{method} bf16"), 3.0, 4) for method in ("FedAvg", "FedSAM")),
    *(_beats(9, ("W1", f"{peer} FedAvg"), ("W1", "FedAvg"), 1.35, 1.5) for peer in (PFL, FEDLAB)),
    *(_beats(9, ("W1", f"{peer} FedAvg"), ("W1", "FedAvg bf16"), 2.8, 3.3) for peer in (PFL, FEDLAB)),
    *(_beats(9, ("W1", f"{peer} FedAvg"), ("W1", "FedAvg"), 1, None) for peer in (BLAZEFL, FLUKE)),
    _beats(10, ("W1", f"{FLOWER} FedAvg"), ("W1", "FedAvg 2 workers"), 1.6, 1.9, "wall"),
    _beats(10, ("W1", f"{BLAZEFL} FedAvg 2 threads"), ("W1", "FedAvg 2 workers"), 1, None, "wall"),
    _beats(11, ("W1", "FedAvg whole"), ("W1", "FedAvg 2 workers"), 1.85, 1.95, "wall"),
    _beats(11, ("W2", "FedAvg"), ("W2", "FedAvg 2 workers"), 1.85, 1.95, "wall"),
    _ours(12, "W2", "FedAvg", "bare-default", 0.50, 0.35),
    _ours(13, "W2", "FedSAM", "bare-default", 1.0, 0.8),
    _beats(14, ("W2", f"{PFL} FedAvg"), ("W2", "FedAvg"), 2.5, None),
    _beats(14, ("W2", f"{FEDLAB} FedAvg"), ("W2", "FedAvg"), 2.6, None),
    _beats(14, ("W2", f"{FLOWER} FedAvg"), ("W2", "FedAvg"), 3.5, None),
    *(_beats(14, ("W2", f"{peer} FedAvg"), ("W2", "FedAvg"), 1, None) for peer in (BLAZEFL, FLUKE)),
    _ours(15, "W3", "FedAvg", "bare-default", 0.15, 0.08),
    _ours(15, "W3-mlp", "FedAvg", "bare-default", 0.15, 0.08),
    *(_beats(16, ("W3", f"{peer} FedAvg"), ("W3", "FedAvg"), 10, 20) for peer in (PFL, FEDLAB)),
    _beats(16, ("W3", f"{FLOWER} FedAvg"), ("W3", "FedAvg"), 60, 120, "wall"),
    *(_beats(16, ("W3", f"{peer} FedAvg"), ("W3", "FedAvg"), 1, None) for peer in (BLAZEFL, FLUKE)),
    _ours(17, "W4", "FedAvg", "bare-best", 1.05, 1.02),
    _ours(17, "W4", "FedSAM", "FedAvg", 2.05, 2.02),
    _beats(18, ("W4", "bare-default"), ("W4", "FedAvg bf16"), 2.3, 2.7),
    _beats(19, ("W5", "bare-default"), ("W5", "FedAvg"), 30, 45),
    _beats(19, ("W5", f"{PFL} FedAvg"), ("W5", "FedAvg"), 50, 85),
    _beats(19, ("W5", f"{FLOWER} FedAvg"), ("W5", "FedAvg"), 100, 200),
    *(_beats(19, ("W5", f"{peer} FedAvg"), ("W5", "FedAvg"), 1, None) for peer in (BLAZEFL, FLUKE)),
    _ours(20, "W5", "FedSAM", "FedAvg", 2, 1.5),
    *(Target(21, work, VectorShare(f"{work} vectors"), 5, 3) for work in ("W1", "W4")),
    Target(22, STORE, Plain(STORE, "read and write", "ms", 1e-3), 50, 25),
    Target(22, STORE, Plain(STORE, "peak memory", "MB", 1e6, "bytes"), 300),
    Target(23, "augmentation", Plain("augmentation", "augmentation", "ms", 1e-3), 0.5, 0.3),
)  # fmt: skip

"""Who is timed on a work: the plain loops and fedflat's methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedflat.engine.ranks import ALONE, Ranks
from fedflat.engine.simulation import Simulation
from fedflat.methods import find

from .bare_loop import BareLoop
from .timing import Prepared, wait_for
from .workloads import Workload


class Implementation(ABC):
    """Something to be timed, by name."""

    tuned = True  # it runs with the allocator as `tune_allocator` sets it, which this process has
    processor = True  # all of its work is done in one process, so that its processor seconds can be told
    per = "round"  # what the seconds are for

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name, which no other implementation of the same part has."""

    @abstractmethod
    def prepare(self) -> Prepared:
        """Set up everything that is not timed."""


@dataclass(frozen=True)
class Bare(Implementation):
    """The plain loop: as a user writes it, or with the free improvements that leave the arithmetic as it is."""

    work: Workload
    channels_last: bool
    tuned: bool
    device: str = "cpu"

    @property
    def name(self) -> str:
        return "bare-best" if self.channels_last else "bare-tuned" if self.tuned else "bare-default"

    def prepare(self) -> Prepared:
        loop = BareLoop(self.work, self.channels_last, self.device)
        clients = self.work.timed_bare or self.work.timed
        facts = {"layout": "channels_last" if self.channels_last else "contiguous", "clients timed": clients}
        return repeated(self.work, clients, lambda: loop.round(clients), facts, device=self.device)


@dataclass(frozen=True)
class Backprop(Implementation):
    """Loss and gradient of one batch in `bare-best`: what the vector work of methods is compared with."""

    work: Workload
    name = "backprop"
    per = "batch"

    def prepare(self) -> Prepared:
        loop = BareLoop(self.work, channels_last=True)
        return Prepared(loop.backprop, facts={"layout": "channels_last"})


@dataclass(frozen=True)
class Ours(Implementation):
    """One of fedflat's methods, through the public `Simulation`."""

    work: Workload
    method: str
    precision: str = "fp32"
    workers: int = 1
    whole: bool = False  # all clients of the round are trained, even where others are timed on some
    ranks: Ranks = ALONE  # with others, who prepare the same
    tested: bool = False  # and the model is tried on a test set of 10,000 samples after it
    device: str = "cpu"
    executor: str = "auto"

    @property
    def name(self) -> str:
        extra = {
            self.executor: self.executor != "auto",
            self.precision: self.precision != "fp32",
            "whole": self.whole and self.workers == 1 and not self.tested,
            f"{self.workers} workers": self.workers > 1,
            "tested": self.tested,
        }
        return " ".join([self.method, *(word for word, applies in extra.items() if applies)])

    @property
    def processor(self) -> bool:  # type: ignore[override]
        """Workers are processes of their own."""
        return self.workers == 1

    def prepare(self) -> Prepared:
        clients = self.work.cohort if self.whole else self.work.timed
        sim = self.simulation(clients)
        facts = {"executor": sim.settings()["executor"], "precision": self.precision, "workers": self.workers}
        return repeated(self.work, clients, sim.round, facts | {"clients timed": clients}, sim.close, self.device)

    def simulation(self, clients: int, rounds: int = 10**6) -> Simulation:
        """Return a simulation whose rounds have `clients` clients each; by default more rounds than anybody takes."""
        return Simulation(
            model=self.work.module(),
            data=self.work.data(self.tested),
            method=find(self.method)(),
            client=self.work.client(),
            rounds=rounds,
            participation=clients,
            device=self.device,
            precision=self.precision,
            executor=self.executor,
            workers=self.workers,
            ranks=self.ranks,
        )


def repeated(
    work: Workload,
    clients: int,
    run: Callable[[], object],
    facts: dict[str, Any],
    close: Callable[[], object] = lambda: None,
    device: str = "cpu",
) -> Prepared:
    """Return as many rounds as the work wants in one time; the seconds are those of one round with the whole cohort.

    A run ends when `device` has done all of it, so that the next one begins on an idle device.
    """

    def rounds() -> None:
        for _ in range(work.rounds):
            run()
        wait_for(device)

    return Prepared(rounds, work.rounds * clients / work.cohort, facts, close)


METHODS = ("FedAvg", "Scaffold", "FedLESAM", "FedSAM", "FedGAMMA", "FedSMOO")


def implementations(name: str, work: Workload) -> list[Implementation]:
    """Return everybody who is timed on the work `name`."""
    special = {"W1": _first, "W1a": _as_fl_simulator, "W2": _medium, "W4": _residual, "W4p": _papers_residual}
    return special.get(name, _small)(work)


def _small(work: Workload) -> list[Implementation]:
    """Return the plain loops to time; layout and allocator make no difference to small dense models."""
    return [Bare(work, False, False), Ours(work, "FedAvg"), Ours(work, "FedSAM")]


def _medium(work: Workload) -> list[Implementation]:
    return [*_small(work), Ours(work, "FedAvg", workers=2)]


def _first(work: Workload) -> list[Implementation]:
    whole = [Ours(work, "FedAvg", whole=True), Ours(work, "FedAvg", whole=True, workers=2),
             Ours(work, "FedAvg", whole=True, tested=True)]  # fmt: skip
    return [*_bare(work), *(Ours(work, method) for method in METHODS), *_low(work), *whole]


def _as_fl_simulator(work: Workload) -> list[Implementation]:
    return [*(Ours(work, method) for method in ("FedAvg", "Scaffold", "FedSAM", "FedSMOO")), *_low(work)]


def _residual(work: Workload) -> list[Implementation]:
    return [*_papers_residual(work), Ours(work, "FedAvg", "bf16")]


def _papers_residual(work: Workload) -> list[Implementation]:
    return [*_bare(work), *(Ours(work, method) for method in ("FedAvg", "FedSAM", "FedSMOO"))]


def _bare(work: Workload) -> list[Implementation]:
    return [Bare(work, False, False), Bare(work, False, True), Bare(work, True, True)]


def _low(work: Workload) -> list[Implementation]:
    return [Ours(work, method, "bf16") for method in ("FedAvg", "FedSAM")]

from __future__ import annotations

from dataclasses import fields
from functools import cache
from math import floor
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.method import Citation, Context, Method, Sources, hyper
from ..core.records import Record, Scalar, Vector
from ..core.wrapper import OfBase, Wrapper, label_of
from .fedavg import FedAvg


@cache
def averaging(server: type[Record]) -> type[Record]:
    """Return a subclass of a base's `server` record with the fields of SWA."""

    class AveragingServer(server):  # type: ignore[misc, valid-type]  # made at run time
        swa_average: Vector  # mean of one model of each cycle, parameters
        swa_models: Scalar  # number of models in this mean

    return AveragingServer


class WithAverage(OfBase):
    """An attribute whose value is the server record of the base with the fields of SWA added."""

    def __get__(self, wrapper: Any, kind: Any) -> Any:
        return averaging(super().__get__(wrapper, kind))


class SWA(Wrapper):
    """A base method with a cyclic step size; the last model of each cycle is averaged.

    client  the base's steps, with the step size lr' = (1 - s) lr + s lr_low, s = (phase + 1) / cycle, from round T on
    server  the base's step; after the last round of a cycle also   a <- (n a + w) / (n + 1);  n <- n + 1

    T is floor(begin R) for R planned rounds, the phase is (t - T) mod cycle, and lr is the base's step size with its
    decay. The average a is evaluated and exported as soon as n > 0; before that, the model of the base is. Training
    never starts from a. With cycle = 1, or lr_low = none, the step size is the base's.
    """

    group = "averaging"
    paper = Citation(
        key="caldarola2022improving",
        authors="Caldarola, Debora and Caputo, Barbara and Ciccone, Marco",
        title="Improving Generalization in Federated Learning by Seeking Flat Minima",
        venue="ECCV",
        year=2022,
        arxiv="2203.11834",
    )
    sources = Sources(
        published={
            "begin": "0.75 (released code's default, of 10,000 rounds)",
            "cycle": "10 (released script, CIFAR-10); its own default is 1",
            "lr_low": "0.0001 (released code's default)",
        },
        departures=(
            "Released code counts phases from round 0, and averages the first model of a cycle, trained with the "
            'largest step size, though its comment says the last (sample = "released"). Izmailov et al. (UAI 2018) '
            "average the last one.",
            "Code evaluates the frozen model of round T until it first averages; here it is the base's.",
            "Izmailov et al. keep the model of round T in the mean; code and this class do not.",
        ),
        readings=(
            "The paper's body was not at hand: the rule is that of its released code with the index repaired. What is "
            "averaged is the base's trained model w, not what it sends or hands out.",
            'Bases whose server step does not shrink with lr keep its length: server_lr_mode = "absolute", FedAdam, '
            "FedYogi, FedAdagrad, and the h of FedDyn. FedGF's threshold is a length on the scale of lr K.",
        ),
    )
    depends_on_rounds: ClassVar[bool] = True
    server: ClassVar[Any] = WithAverage()

    base: Method = hyper(FedAvg(server_lr=1.0), "the method that is trained; none that trains each client alone")
    begin: float = hyper(0.75, "share of the planned rounds before the first cycle; 1 is the base alone", low=0, high=1)
    cycle: int = hyper(10, "rounds of a cycle", low=1)
    lr_low: float | None = hyper(
        1e-4, "step size at the end of a cycle; none keeps the base's step size", low=0, open_low=True
    )
    sample: Literal["cycle_end", "released"] = hyper(
        "cycle_end", "which model of a cycle is averaged: its last, or as released code"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.training == "local":
            name = type(self.base).__name__
            raise InputError(f"SWA.base: {name} trains each client alone, so the server has no models to average")

    def check_rounds(self, rounds: int) -> None:
        self.base.check_rounds(rounds)
        first = self._first_round(rounds)
        if self.begin < 1 and not any(self._is_averaged(t, first) for t in range(first, rounds)):
            raise InputError(
                f"rounds = {rounds}: {label_of(self)} would average no model, as {rounds - first} rounds are left "
                f"from begin = {self.begin:g} on, and a cycle has {self.cycle}; lower method.cycle or method.begin"
            )

    def round_lr(self, ctx: Context) -> float:
        lr, first = self.base.round_lr(ctx), self._first_round(ctx.rounds)
        if ctx.t < first or self.cycle == 1 or self.lr_low is None:
            return lr
        phase = (ctx.t - (first if self.sample == "cycle_end" else 0)) % self.cycle
        share = (phase + 1) / self.cycle
        return (1 - share) * lr + share * self.lr_low

    def init_server(self, w: Tensor) -> Any:
        return self._record(self.base.init_server(w), torch.zeros_like(w), w.new_zeros(1))

    def update(self, server: Any, mean: Any, ctx: Context) -> Any:
        after, average, n = self.base.update(server, mean, ctx), server.swa_average, server.swa_models
        if self._is_averaged(ctx.t, self._first_round(ctx.rounds)):
            average, n = (n * average + after.w) / (n + 1), n + 1
        return self._record(after, average, n)

    def served(self, server: Any) -> Tensor:
        return torch.where(server.swa_models > 0, server.swa_average, self.base.served(server))

    def _first_round(self, rounds: int) -> int:
        """Return T; 1e-9 is added so that 0.7 of 10 rounds is 7, although the floating-point product is less."""
        return floor(self.begin * rounds + 1e-9)

    def _is_averaged(self, t: int, first: int) -> bool:
        """Tell whether the model after round `t` is averaged."""
        if self.sample == "released":
            return t > first and (t - first) % self.cycle == 0
        return t >= first and (t - first) % self.cycle == self.cycle - 1

    def _record(self, server: Any, average: Tensor, models: Tensor) -> Any:
        """Return the server record that joins the base's record `server` and the average."""
        own = {f.name: getattr(server, f.name) for f in fields(self.base.server)}
        return self.server(**own, swa_average=average, swa_models=models)

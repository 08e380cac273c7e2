from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from torch import Tensor

from ..core.method import Citation, Context, Sources, hyper
from ..core.records import Delta, Model, Record, Vector
from .fedavg import FedAvg


class WithInitial(Model):
    initial: Annotated[Tensor, "d", "first=initial"]  # the initial model of the run, parameters


class LastLocal(Record):
    last: Vector  # the local model at the end of this client's previous round, parameters


class FedInit(FedAvg, server=WithInitial, client=LastLocal, down=WithInitial):
    """A client begins a little beyond the global model, away from where its own last round ended.

    client  start at w + beta (w - w_last);   w_i <- w_i - lr g_i(w_i);   w_last <- w_i
    server  w <- w + server_lr mean (w_i - w)

    A client's first round begins at w. With server_lr = 1 the server takes the mean of the local models.
    """

    group = "drift correction"
    paper = Citation(
        key="sun2023understanding",
        authors="Sun, Yan and Shen, Li and Tao, Dacheng",
        title="Understanding How Consistency Works in Federated Learning via Stage-wise Relaxed Initialization",
        venue="NeurIPS",
        year=2023,
        arxiv="2306.05706",
    )
    sources = Sources(
        published={"beta": "0.1 (FL-Simulator)"},
        departures=(
            'FL-Simulator averages the moves from the relaxed starts and adds them to w (aggregate = "updates"), and '
            'takes the initial model for the last one of a client that is new (first = "initial").',
            "There the relaxed start is also the anchor of proximal and dual terms.",
        ),
        readings=(
            "The paper's body was not at hand. That the server averages models is recalled, and two ports do so.",
            "What a client does in its first round is our choice: it does not know the initial model.",
        ),
    )
    beta: float = hyper(0.1, "how far beyond the global model a client starts; 0 is FedAvg", low=0)
    first: Literal["none", "initial"] = hyper(
        "none", "a client's first round: at the global model, or as if its last one were the initial model"
    )
    aggregate: Literal["models", "updates"] = hyper(
        "models", "what is averaged: w_i - w, or the move from the client's own start"
    )

    def init_server(self, w: Tensor) -> WithInitial:
        start: WithInitial = super().init_server(w)
        return replace(start, initial=w[..., : start.initial.shape[-1]])

    def init_client(self, down: WithInitial) -> LastLocal:
        return LastLocal(down.initial if self.first == "initial" else down.w)

    def start(self, down: WithInitial, client: LastLocal) -> Tensor:
        return down.w + self.beta * (down.w - client.last)

    def finish(self, w: Tensor, client: LastLocal, down: WithInitial, ctx: Context) -> tuple[Delta, LastLocal]:
        origin = down.w if self.aggregate == "models" else self.start(down, client)
        return Delta(w - origin), LastLocal(w)

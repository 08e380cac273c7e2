from __future__ import annotations

from torch import Tensor

from ..core.method import Citation, Context, Sources, hyper
from .fedavg import FedAvg


class FedRep(FedAvg):
    """FedAvg on the body of the model; each client trains and keeps a head of its own.

    client  h_i <- h_i - lr g_i(b_i, h_i)  in the first head_steps steps, with b_i = b
            b_i <- b_i - lr g_i(b_i, h_i)  in all later ones
    server  b <- b + server_lr mean (b_i - b)

    g_i is the gradient with respect to what moves; clipping, weight decay and momentum act on that part alone. The head
    is what the run's `keep` names, or without it the model's last layer. h_i begins as the initial model's head, is
    kept between rounds and never sent.
    """

    group = "personal"
    paper = Citation(
        key="collins2021exploiting",
        authors="Collins, Liam and Hassani, Hamed and Mokhtari, Aryan and Shakkottai, Sanjay",
        title="Exploiting Shared Representations for Personalized Federated Learning",
        venue="ICML",
        year=2021,
        arxiv="2102.07078",
    )
    sources = Sources(
        published={
            "head_steps": "one epoch, then one of the body (PFLlib's defaults); all but the last epoch (FL-bench)"
        },
        departures=(
            "PFLlib and FL-bench count epochs, with a step for each minibatch; here head_steps counts steps, whatever "
            "the number of steps of a client, and a client with no more steps moves its head alone.",
            "FL-bench has one optimiser for both parts and clears the gradient of the one that rests.",
        ),
        readings=(
            "The paper's body was not at hand: the update was recalled, and compared with two libraries. Five rounds "
            "of PFLlib's clients, with full batches in double precision, end at the same models up to rounding.",
            "Evaluated for a client is the server's body with the client's head, not the client's last body.",
        ),
    )
    keeps_head = True
    head_steps: int = hyper(1, "first local steps, which move the head alone; 0 keeps the initial head", low=0)

    def moving_parts(self, ctx: Context) -> tuple[Tensor | bool, Tensor | bool]:
        return ctx.steps >= self.head_steps, ctx.steps < self.head_steps

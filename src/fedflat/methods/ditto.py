from __future__ import annotations

from torch import Tensor

from ..core.method import Citation, Context, Oracle, Sources, hyper
from ..core.records import Delta, Model, Record, Vector, own_model
from .fedavg import FedAvg


class DittoClient(Record):
    v: Vector = own_model()  # model of client i, parameters


class Ditto(FedAvg, server=Model, client=DittoClient, down=Model, up=Delta):
    """FedAvg; beside it each client trains and keeps a model of its own, held near the received one.

    client  w_i <- w_i - lr g_i(w_i);   v_i <- v_i - lr (g_i(v_i) + lam (v_i - w))
    server  w <- w + server_lr mean (w_i - w)

    v_i begins as the initial model, takes the same steps on the same minibatches as w_i, and is never sent. Clipping,
    weight decay and momentum act on each of the two alone. The server's model is that of FedAvg for every lam.
    """

    group = "personal"
    paper = Citation(
        key="li2021ditto",
        authors="Li, Tian and Hu, Shengyuan and Beirami, Ahmad and Smith, Virginia",
        title="Ditto: Fair and Robust Federated Learning Through Personalization",
        venue="ICML",
        year=2021,
        arxiv="2012.04221",
    )
    sources = Sources(
        published={"lam": "1 (FL-bench's default); 0 (PFLlib's default)"},
        departures=(
            "PFLlib and FL-bench set epochs of v_i of its own and draw its minibatches anew; here both models take the "
            "same steps on the same minibatches.",
            "PFLlib trains v_i before w_i, FL-bench after it; both pull to the received w, so the order is the same.",
            "PFLlib adds lam/2 times the norm, not the squared norm, to the loss that it reports.",
        ),
        readings=(
            "The paper's body was not at hand: the update was recalled, and compared with two libraries. Five rounds "
            "of PFLlib's clients, with full batches in double precision, end at the same models up to rounding.",
            "v_i begins as the initial model at every client, as in both libraries, also where a client is first asked "
            "in a later round.",
        ),
    )
    lam: float = hyper(
        1.0, "weight of the pull of own models to the received one, per parameter unit; 0 trains them alone", low=0
    )

    @property
    def own_penalty(self) -> float:
        return self.lam

    def init_client(self, down: Model) -> DittoClient:
        return DittoClient(down.w)

    def own_step(self, v: Tensor, client: DittoClient, down: Model, grad: Oracle, ctx: Context) -> Tensor:
        return grad(v) + self.lam * (v - down.w)

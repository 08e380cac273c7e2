from __future__ import annotations

from torch import Tensor

from ..core.method import Citation, Context, Method, Oracle, Sources
from ..core.records import Model, Nothing


class Local(Method, server=Model, client=Model, down=Model, up=Nothing):
    """Each client alone: SGD on its own samples; nothing is ever sent.

    client  w_i <- w_i - lr g_i(w_i), from the common initial model on; it keeps w_i for its next round
    server  does nothing; each client's own model is evaluated, and the mean of these results is reported

    A federation is worth its communication where it is better than this baseline.
    """

    training = "local"
    group = "baselines"
    paper = Citation(
        key="yu2020salvaging",
        authors="Yu, Tao and Bagdasaryan, Eugene and Shmatikov, Vitaly",
        title="Salvaging Federated Learning by Local Adaptation",
        venue="arXiv",
        year=2020,
        arxiv="2002.04758",
    )
    sources = Sources(
        departures=("The paper trains local models to their end; here they have a federation's rounds.",),
        readings=("A client trains in the rounds in which a federation would ask it, so gradients are equal.",),
    )

    def start(self, down: Model, client: Model) -> Tensor:
        return client.w

    def step(self, w: Tensor, client: Model, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Model]:
        return grad(w), client

    def finish(self, w: Tensor, client: Model, down: Model, ctx: Context) -> tuple[Nothing, Model]:
        return Nothing(), Model(w)

    def init_client(self, down: Model) -> Model:
        return Model(down.w)

    def update(self, server: Model, mean: Nothing, ctx: Context) -> Model:
        return server

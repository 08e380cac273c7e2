from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from torch import Tensor

from ..core.method import Citation, Context, Sources, hyper
from ..core.records import Delta, Model, Vector
from .fedavg import FedAvg


class Adaptive(Model):
    m: Vector  # running mean of the clients' mean move D, in parameter units
    v: Vector  # running estimate (FedAdagrad: sum) of D^2, in squared parameter units


class AdaptiveServer(FedAvg, server=Adaptive):
    """A server that scales each coordinate of the mean move by the history of this coordinate."""

    paper = Citation(
        key="reddi2021adaptive",
        authors="Reddi, Sashank and Charles, Zachary and Zaheer, Manzil and Garrett, Zachary and Rush, Keith and "
        "Konecny, Jakub and Kumar, Sanjiv and McMahan, Brendan",
        title="Adaptive Federated Optimization",
        venue="ICLR",
        year=2021,
        arxiv="2003.00295",
    )
    sources = Sources(
        grids={"server_lr": (0.01, 0.1, 1.0), "tau": (0.001, 0.01, 0.1)},
        published={
            "server_lr": "0.1 (FedSMOO, FedLESAM); 0.01 CIFAR-10 and DBpedia, 1 CIFAR-100 (FedVSSAM)",
            "tau": "0.01 (FL-Simulator); 0.001 CIFAR-10 and DBpedia, 0.1 CIFAR-100 (FedVSSAM)",
        },
        departures=(
            "FL-Simulator and FL-bench start from v = 0 (v0 = 0); the paper needs v >= tau^2.",
            "Flower corrects the bias of m and v; the paper does not.",
        ),
        charged=1,
    )
    server_lr: float = hyper(0.1, "server step size, in parameter units per unit of m / sqrt(v)", low=0, open_low=True)
    beta1: float = hyper(0.9, "weight of the old m", low=0, high=1)
    beta2: float = hyper(0.99, "weight of the old v", low=0, high=1)
    tau: float = hyper(0.01, "adaptivity: added to sqrt(v), in parameter units", low=0, open_low=True)
    v0: float | None = hyper(None, "start of v; none is tau^2, as the paper; released codes take 0", low=0)

    def init_server(self, w: Tensor) -> Adaptive:
        start: Adaptive = super().init_server(w)
        return replace(start, v=start.v + (self.tau**2 if self.v0 is None else self.v0))

    @abstractmethod
    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        """Compute the next v from the old one and the mean move, (d,)."""

    def update(self, server: Adaptive, mean: Delta, ctx: Context) -> Adaptive:
        m = self.beta1 * server.m + (1 - self.beta1) * mean.delta
        v = self.square(server.v, mean.delta)
        return Adaptive(server.w + self.server_lr * m / (v.sqrt() + self.tau), m, v)


class FedAdam(AdaptiveServer):
    """Adam at the server, without bias correction.

    client  w_i <- w_i - lr g_i(w_i)
    server  D = mean (w_i - w);   m <- beta1 m + (1 - beta1) D;   v <- beta2 v + (1 - beta2) D^2
            w <- w + server_lr m / (sqrt(v) + tau)
    """

    group = "server optimisers"
    paper = AdaptiveServer.paper

    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * delta.square()


class FedYogi(AdaptiveServer):
    """Yogi at the server: v moves towards the squared move by a step whose length does not depend on v.

    client  w_i <- w_i - lr g_i(w_i)
    server  D = mean (w_i - w);   m <- beta1 m + (1 - beta1) D
            v <- v - (1 - beta2) D^2 sign(v - D^2);   w <- w + server_lr m / (sqrt(v) + tau)
    """

    group = "server optimisers"
    paper = AdaptiveServer.paper

    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        return v - (1 - self.beta2) * delta.square() * (v - delta.square()).sign()


class FedAdagrad(AdaptiveServer):
    """Adagrad at the server: v sums the squares of all moves.

    client  w_i <- w_i - lr g_i(w_i)
    server  D = mean (w_i - w);   m <- beta1 m + (1 - beta1) D;   v <- v + D^2
            w <- w + server_lr m / (sqrt(v) + tau)

    The paper takes beta1 = 0, the default here; beta2 is not used.
    """

    group = "server optimisers"
    paper = AdaptiveServer.paper
    beta1: float = hyper(0.0, "weight of the old m", low=0, high=1)

    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        return v + delta.square()

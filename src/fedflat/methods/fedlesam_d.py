from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ..core.method import Sources, hyper
from .feddyn import DynamicClient, DynamicRegularised, DynamicServer
from .fedlesam import FedLESAM, LesamServer, LocallyEstimated


class DynamicLesam(DynamicServer):
    last: Annotated[Tensor, "d", "from_server"]  # the last global move, the h term included, parameters


class DynamicAndOld(DynamicClient):
    w_old: Annotated[Tensor, "d", "from_client"]  # the global model of this client's previous round, parameters


class FedLESAM_D(LocallyEstimated, DynamicRegularised, server=DynamicLesam, client=DynamicAndOld, down=LesamServer):
    """FedLESAM's perturbation inside FedDyn.

    client  e = rho unit(w_old - w);   w_i <- w_i - lr (g_i(w_i + e) + h_i / beta + (w_i - w) / beta)
            h_i <- h_i + (w_i - w);   w_old <- w
    server  h <- h + S/N mean (w_i - w);   w <- mean w_i + h

    The paper's Algorithm 4 has the sign of the dual reversed; the paper's code is FedDyn.
    """

    group = "flat"
    paper = FedLESAM.paper
    sources = Sources(
        grids={"rho": (0.01, 0.1), "beta": (10.0, 100.0)},
        published={"rho": "0.1 (FedLESAM)", "beta": "10 (FedLESAM)"},
        departures=(
            "The paper's Algorithm 4 has the sign of the dual reversed and does not use the server's;"
            " its code is FedDyn.",
            "The released optimiser has FedLESAM's index bug; see there. FL-SAM pulls with the norm, not the squared "
            "norm.",
            "The paper charges 2 times FedAvg and stores 4 vectors; its Algorithm 4 moves 2 vectors and stores 3.",
        ),
        readings=(
            "Our cost follows Algorithm 4: a client stores the model, the old model and the dual, and sends what "
            "FedAvg's clients send. The test of the cost compares our count with Table 7 and names this difference.",
        ),
        charged=2,
    )
    rho: float = hyper(0.1, "radius of the perturbation, in parameter units; 0 is FedDyn", low=0)
    beta: float = hyper(10.0, "inverse weight of the regulariser, in parameter units", low=0, open_low=True)

    @property
    def penalty(self) -> float:
        return 1 / self.beta

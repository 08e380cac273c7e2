from __future__ import annotations

from typing import Annotated

from torch import Tensor

from ..core.method import Context, Oracle, Sources, hyper
from .fedlesam import FedLESAM, LocallyEstimated
from .scaffold import Control, Controlled, Scaffold


class ControlledLesam(Controlled):
    last: Annotated[Tensor, "d", "from_server"]  # the last global move, parameters


class ControlAndOld(Control):
    w_old: Annotated[Tensor, "d", "from_client"]  # the global model of this client's previous round, parameters


class ScaledScaffold(Scaffold):
    """Scaffold whose correction c - c_i is multiplied by a factor."""

    variate_scale: float = hyper(1.0, "factor on c - c_i; the released code has 0.1", low=0)

    def step(self, w: Tensor, client: Control, down: Controlled, grad: Oracle, ctx: Context) -> tuple[Tensor, Control]:
        return grad(w) + self.variate_scale * (down.c - client.c), client


class FedLESAM_S(LocallyEstimated, ScaledScaffold, server=ControlledLesam, client=ControlAndOld, down=ControlledLesam):
    """FedLESAM's perturbation inside Scaffold.

    client  e = rho unit(w_old - w);   w_i <- w_i - lr (g_i(w_i + e) - c_i + c)
            c_i <- c_i - c + (w - w_i) / (lr K_i);   w_old <- w
    server  w <- w + server_lr mean (w_i - w);   c <- c + S/N mean (change of c_i)

    The paper's Algorithm 2 prints + lr (c - c_i) and other increments of c; the paper's code is Scaffold.
    """

    group = "flat"
    paper = FedLESAM.paper
    sources = Sources(
        grids={"rho": (0.01, 0.1)},
        published={"rho": "0.1 (FedLESAM)"},
        departures=(
            "The paper's Algorithm 2 has the sign of c - c_i and the increments of c wrong.",
            "The released code multiplies c - c_i by 0.1 (variate_scale).",
            "The released optimiser has FedLESAM's index bug; see there.",
        ),
        charged=2,
    )
    rho: float = hyper(0.1, "radius of the perturbation, in parameter units; 0 is Scaffold", low=0)

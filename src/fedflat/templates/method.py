"""A complete method in one file; every promise of a method is checked with `fedflat check-method method.py:FedExample`.

`fedflat run --method method.py:FedExample --method.rho 0.2` trains with it. In the package, in src/fedflat/methods/,
imports are relative: `from ..core.method import Citation`. No other file has to be changed.
"""

from __future__ import annotations

from torch import Tensor

from fedflat.core.method import Citation, Context, Method, Oracle, Sources, hyper, sam
from fedflat.core.records import Delta, Model, Nothing, Vector


# Records declare what a party keeps or sends. Checkpoints, messages, averages and the cost are made from them.
class ExampleServer(Model):
    """What the server keeps between rounds: `Model` has the field `w`. Say what each field is, and in which unit."""

    m: Vector  # server momentum, in parameter units


# server: what the server keeps. down: what it sends, the fields of `server` with these names. up: what a client sends.
# Clients of this method keep `Nothing` between their rounds; if yours do, write a Record and name it here: client=...
class FedExample(Method, server=ExampleServer, down=Model, up=Delta):
    """One sentence: SAM at the clients, heavy-ball momentum at the server.

    client  w_i <- w_i - lr g_i(w_i + rho unit(g_i(w_i)))
    server  m <- beta m + mean (w_i - w);   w <- w + m

    The update above is in the paper's letters and in the order of the code below. Write here what it does not say.
    """

    group = "flat"  # in lists of methods; the groups are `GROUPS` of fedflat/core/method.py
    paper = Citation(
        key="placeholder2026",
        authors="Placeholder, Ada and Placeholder, Bo",
        title="Placeholder: The Title of the Paper",
        venue="arXiv",
        year=2026,
        arxiv="0000.00000",
    )
    sources = Sources(
        published={"rho": "placeholder: 0.1 (the paper's Table 1)"},
        departures=("Placeholder: where released code computes something else than the paper, or: No official code.",),
        readings=("Placeholder: how you read what the paper leaves open.",),
    )
    rho: float = hyper(0.1, "radius of the perturbation, in parameter units; 0 is FedAvgM", low=0)
    beta: float = hyper(0.9, "weight of the old momentum; 0 is FedSAM", low=0, high=1)

    # Hooks are pure: they return what changes, assign nothing, and ask no tensor for its value. The same text runs one
    # client, (d,), and a stack of clients, (clients, d); so they reduce over the last axis only, with keepdim=True.
    def step(self, w: Tensor, client: Nothing, down: Model, grad: Oracle, ctx: Context) -> tuple[Tensor, Nothing]:
        """Return the descent direction of a local step, and the client's next record. `grad` has one batch per step."""
        return sam(grad, self.rho)(w), client

    def finish(self, w: Tensor, client: Nothing, down: Model, ctx: Context) -> tuple[Delta, Nothing]:
        """Return what the client sends and what it keeps, after the last local step."""
        return Delta(w - down.w), client

    def update(self, server: ExampleServer, mean: Delta, ctx: Context) -> ExampleServer:
        """Return the server's next record, from the mean of the clients' messages alone."""
        m = self.beta * server.m + mean.delta
        return ExampleServer(server.w + m, m)

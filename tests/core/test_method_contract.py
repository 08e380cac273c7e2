"""The contract of methods finds methods that break it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedflat.core.errors import BrokenPromiseError, InputError
from fedflat.core.method import Method, hyper
from fedflat.core.method_contract import CONTRACT
from fedflat.core.records import Delta, Model, Nothing, Record, Vector
from fedflat.core.user_code import check_method_class
from fedflat.methods.fedavg import FedAvg
from fedflat.methods.scaffold import Scaffold


class NoKeepdim(FedAvg):
    """Divides by a norm over all clients."""

    def step(self, w: Any, client: Any, down: Any, grad: Any, ctx: Any) -> Any:
        g = grad(w)
        return g / g.norm(), client


class InPlace(FedAvg):
    """Writes into the server's model."""

    def update(self, server: Any, mean: Any, ctx: Any) -> Any:
        server.w.add_(mean.delta)
        return server


class WrongShape(FedAvg):
    """Sends one number instead of the change."""

    def finish(self, w: Any, client: Any, down: Any, ctx: Any) -> Any:
        return Delta((w - down.w).sum(-1, keepdim=True)), client


class WrongType(FedAvg):
    """Takes its steps in double precision."""

    def finish(self, w: Any, client: Any, down: Any, ctx: Any) -> Any:
        return Delta((w - down.w).double()), client


class WrongRecord(FedAvg):
    """Keeps what it did not declare."""

    def finish(self, w: Any, client: Any, down: Any, ctx: Any) -> Any:
        return Delta(w - down.w), Model(w)


class WrongAnnotation(FedAvg):
    """Says that the server is something else."""

    def update(self, server: Delta, mean: Delta, ctx: Any) -> Model:
        return FedAvg.update(self, server, mean, ctx)


class NoRange(FedAvg):
    """Has a plain field."""

    extra: float = 1.0


class Ignored(FedAvg):
    """Takes values that its field does not allow."""

    extra: float = hyper(1.0, "of nothing", low=0)

    def __post_init__(self) -> None:
        """Check nothing."""


class Unmarked(FedAvg):
    """Lets the number of clients decide how far the model moves."""

    def update(self, server: Model, mean: Delta, ctx: Any) -> Model:
        return Model(server.w + ctx.share * mean.delta)


class WithoutShare(Scaffold):
    """Moves the mean of all control variates by those of the cohort alone."""

    def update(self, server: Any, mean: Any, ctx: Any) -> Any:
        return replace(server, w=server.w + mean.delta, c=server.c + mean.dc)


BROKEN = {
    NoKeepdim: ("a stack is its clients one by one", "differs by .* between a stack and the client alone"),
    InPlace: ("nothing is written in place", "was changed in place"),
    WrongShape: ("shapes and dtypes are as declared, float64", r"up.delta has shape \(4, 1\), not \(4, 11\)"),
    WrongType: ("shapes and dtypes are as declared, float32", "is torch.float64, not torch.float32"),
    WrongRecord: ("shapes and dtypes are as declared, float64", "client is a Model, the class line says Nothing"),
    WrongAnnotation: ("annotations of hooks are the class line", "update: server is annotated Delta, and is Model"),
    NoRange: ("hyper-parameters are frozen and checked", "extra has no range; declare it with hyper"),
    Unmarked: ("a mean over all clients is marked", "the share of clients changes w: mark the server's field"),
    WithoutShare: ("a mean over all clients is marked", "server.c is no mean over all clients"),
    Ignored: ("hyper-parameters are frozen and checked", "server_lr = -1 is below its range and was accepted"),
}


@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_promise_is_found(cls: type[Method]) -> None:
    promise, message = BROKEN[cls]
    with pytest.raises(BrokenPromiseError, match=message):
        CONTRACT[promise](cls())


@pytest.mark.parametrize("cls", [FedAvg, Scaffold])
def test_a_method_that_keeps_all_has_none_broken(cls: type[Method]) -> None:
    for check in CONTRACT.values():
        check(cls())
    check_method_class(cls)


class NoModel(Record):
    """A server that forgot the model."""

    m: Vector


def no_step(*arguments: Any) -> Any:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("records", "hooks", "message"),
    [
        ({"down": Model, "up": Delta}, {}, "Mine names no record `server`"),
        ({"server": Model, "down": Model}, {}, "Mine names no record `up`"),
        ({"server": NoModel, "down": Model, "up": Delta}, {}, "NoModel, server of Mine, needs a field w"),
        (
            {"server": Model, "down": Model, "up": Delta},
            {"update": lambda self, server: server},
            r"Mine.update\(self, server\) is called with \(self, server, mean, ctx\): too many positional",
        ),
        (
            {"server": Model, "down": Model, "up": Delta},
            {"receive": lambda self, up, ctx, more: up},
            r"Mine.receive\(self, up, ctx, more\) is called with \(self, up, ctx\): missing a required argument",
        ),
        (
            {"server": Model, "down": Model, "up": Delta},
            {"group": "falt"},
            r"^Mine.group: there is no group 'falt'; known are baselines, .*, others; did you mean flat\?$",
        ),
    ],
)
def test_a_class_that_cannot_be_a_method_is_refused_by_name(
    records: dict[str, Any], hooks: dict[str, Any], message: str
) -> None:
    usual = {name: getattr(FedAvg, name) for name in ("step", "finish", "update")}
    cls = type("Mine", (Method,), usual | hooks | {"__module__": __name__}, **records)
    with pytest.raises(InputError, match=message):
        check_method_class(cls)


def test_the_small_problem_moves_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract on a problem where nothing happens would be kept by anything."""
    from fedflat.core.method_contract import CLIENTS, states

    server, down, client = states(FedAvg())
    assert (server.w - torch.linspace(-1, 1, len(server.w), dtype=server.w.dtype)).abs().min() > 1e-3
    assert down.w.shape[0] == CLIENTS
    assert type(client) is Nothing
    assert replace(down, w=server.w) is not down

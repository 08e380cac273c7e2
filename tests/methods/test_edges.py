"""First rounds, first participation, zero gradients, tiny clients: every method, without any edit for a new one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedflat.core.descent import Descent
from fedflat.core.local import local_round
from fedflat.core.method import Context, Method
from fedflat.methods import find
from support.effort import ALL, covering_methods, for_few_rounds
from support.federation import federation, simulation


class Flat:
    """An oracle on a plateau: every gradient is zero."""

    def __call__(self, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(w)

    def with_teacher(self, e: torch.Tensor, weight: float, tau: float) -> Flat:
        return self

    def teacher_gradient(self, w: torch.Tensor, e: torch.Tensor, tau: float) -> torch.Tensor:
        return torch.zeros_like(w)

    def wrt_inputs(self, w: torch.Tensor, matrix: torch.Tensor, shift: torch.Tensor):
        return self(w), self(matrix), self(shift)


def test_on_a_plateau_nothing_moves_and_nothing_is_nan(method: Method) -> None:
    w, method = torch.linspace(-1, 1, 7, dtype=torch.float64), method.on_model(((2, 2), (3,)))
    server, client = method.init_server(w), None
    ctx = Context(0, 0.1, 0.5, is_weight=w > 0, layers=(slice(0, 4), slice(4, 7)), sampled=2, full_grad=Flat())
    for t in range(3):
        down = method.broadcast(server).map(lambda x: x.expand(2, -1))
        client = method.init_client(down) if client is None else client
        result = local_round(method, down, client, [(Flat(), 2)] * 3, replace(ctx, t=t), Descent(0.1))
        steps = replace(ctx, t=t, steps=result.steps, lr_sum=result.steps * 0.1)
        received = method.receive(result.up, steps).map(lambda x: x.mean(0))
        server = method.update(
            server, received, replace(steps, steps=torch.full((1,), 3.0), lr_sum=torch.full((1,), 0.3))
        )
        client = result.client
        assert torch.equal(server.w, w)
        records = (server, down, client, result.up)
        assert all(torch.isfinite(x).all() for record in records for x in record.tensors().values())


CASES = {
    "one local step": {"client": {"steps": 1, "epochs": None}},
    "full participation": {"participation": 1.0},
    "one client in all": {"data": federation(sizes=(9,)), "participation": 1},
    "clients of one sample": {"data": federation(sizes=(1, 1, 1)), "participation": 2},
    "batches larger than clients": {"client": {"batch_size": 1000}},
    "first met late": {"participation": [[0], [0, 1], [0], [0, 1, 5], [4, 5]], "rounds": 5},
}


# Every method in two cases, every case with several methods, or in `make test-all` all with all.
PAIRS = [
    (name, case) for i, name in enumerate(covering_methods()) for j, case in enumerate(CASES) if ALL or (i + j) % 3 == 0
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), PAIRS)
def test_corner_cases_run_the_same_in_both_executors(name: str, case: str) -> None:
    method = for_few_rounds(find(name))
    one, many = (simulation(method, executor=e, **CASES[case]).run() for e in ("sequential", "stacked"))
    assert torch.isfinite(one.w).all()
    assert (one.w - many.w).norm() <= 1e-12 * one.w.norm()
    assert one.summary["drift"] > 0


def test_a_first_record_depends_on_the_first_message_alone(method: Method) -> None:
    """A client first met in round 3 trains as it would under any history of the others that leads to this server."""
    early = simulation(method, participation=[[0], [0], [0], [0, 5]], rounds=4)
    for _ in range(3):
        early.round()
    fresh = simulation(method, participation=[[0], [0], [0], [0, 5]], rounds=4)
    fresh._server.state, fresh._server.t, fresh._server.history = early.server, 3, [*early.history]
    for sim in (early, fresh):
        sim.round()
    mine = [
        sim._store.get(torch.tensor([5]).numpy(), sim._server.broadcast().map(lambda x: x[None]))
        for sim in (early, fresh)
    ]
    for name, tensor in mine[0].tensors().items():
        assert torch.equal(tensor, getattr(mine[1], name)), name

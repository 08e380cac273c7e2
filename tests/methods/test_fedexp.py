from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.method import Context
from fedflat.methods import find
from support.federation import federation, final_w, simulation
from support.problem import Problem, assert_agrees
from support.quadratic_clients import bowls

FedExP, FedAvg = find("FedExP"), find("FedAvg")


def transcription(p: Problem, eps: float, released: bool, average: bool) -> np.ndarray:
    w = before = p.w0
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v), p.lr(t))
            moves.append(v - w)
        mean = p.mean(cohort, moves)
        added = eps * len(cohort) * p.lr(t) ** 2 if released else eps
        longer = max(1.0, p.mean(cohort, [d @ d for d in moves]) / (2 * (mean @ mean + added)))
        before, w = w, w + longer * mean
    return (w + before) / 2 if average else w


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_transcription(released: bool, average: bool) -> None:
    method = FedExP(eps=1e-3, eps_mode="released" if released else "absolute", average_last=average)
    assert_agrees(lambda p: transcription(p, 1e-3, released, average), method, ("uniform", "samples"))


def update(moves: torch.Tensor, **hyper) -> torch.Tensor:
    """The first model, from zero, after the clients' moves (clients, d)."""
    method = FedExP(average_last=False, **hyper)
    server = method.init_server(torch.zeros(moves.shape[1], dtype=torch.float64))
    ctx = Context(0, 0.1, 1.0, sampled=len(moves))
    received = method.receive(method.up(moves), ctx).map(lambda x: x.mean(0))
    return method.update(server, received, ctx).w


@pytest.mark.parametrize("clients", [1, 2, 3, 8])
def test_orthogonal_moves_of_one_length_are_lengthened_by_half_their_number(clients: int) -> None:
    moves = 0.3 * torch.eye(8, dtype=torch.float64)[:clients]
    torch.testing.assert_close(update(moves, eps=1e-14), max(1, clients / 2) * moves.mean(0), rtol=1e-10, atol=0)


def test_equal_moves_are_averaged_and_so_are_moves_that_cancel() -> None:
    moves = torch.ones(4, 3, dtype=torch.float64)
    assert torch.equal(update(moves), moves[0])
    assert torch.equal(update(torch.cat([moves, -moves])), torch.zeros(3, dtype=torch.float64))


def test_a_common_scale_of_moves_and_eps_changes_nothing() -> None:
    moves = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(update(7 * moves, eps=49e-2), 7 * update(moves, eps=1e-2), rtol=1e-14, atol=0)


def test_one_client_a_round_or_a_large_eps_is_fedavg() -> None:
    one = {"participation": 1}
    assert (final_w(FedExP(average_last=False), **one) - final_w(FedAvg(), **one)).abs().max() <= 1e-12
    assert (final_w(FedExP(average_last=False, eps=1e12)) - final_w(FedAvg())).abs().max() <= 1e-12
    alike = bowls(1, sizes=(2,))
    alike = replace(alike, A=np.repeat(alike.A, 3, 0), m=np.repeat(alike.m, 3, 0), sizes=(2, 2, 2))
    ends = [alike.simulation(m, rounds=3, participation=3).run().w for m in (FedExP(average_last=False), FedAvg())]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)


def test_the_mean_of_two_is_evaluated_and_the_last_one_is_trained() -> None:
    """Averaging changes no iterate; after round 0 the first model itself is handed out."""
    averaged, plain = (simulation(FedExP(eps=1e-6, average_last=average)) for average in (True, False))
    assert torch.equal(averaged.w, plain.w)
    before = None
    for one, other in zip(averaged, plain, strict=True):
        last = plain.server.w
        assert torch.equal(averaged.server.w, last)
        expected = last if before is None else (last + before) / 2
        torch.testing.assert_close(averaged.w, expected, rtol=0, atol=1e-15)
        assert (one.metrics["test_loss"] == other.metrics["test_loss"]) == (before is None)
        before = last
    run = averaged.result()
    assert torch.equal(run.w, averaged.w)
    written = torch.cat([x.flatten() for x in run.model.parameters()]).detach()
    assert torch.equal(written, averaged.w)


@pytest.mark.slow
def test_flatness_is_that_of_the_evaluated_model_and_rounds_start_from_the_trained_one() -> None:
    sim = simulation(FedExP(eps=1e-6), data=federation())
    run = sim.run(flatness=["gradient_norm", "tracking_error"])
    alone = ff.flatness(run.model, sim.data, ["gradient_norm"])
    assert run.flatness["gradient_norm"].value == pytest.approx(alone["gradient_norm"].value, rel=1e-12)
    plain = simulation(FedExP(eps=1e-6, average_last=False), data=federation()).run(flatness=["tracking_error"])
    assert run.flatness["tracking_error"].value == plain.flatness["tracking_error"].value

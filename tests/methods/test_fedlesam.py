from __future__ import annotations

import numpy as np
import pytest
import torch

from fedflat.methods import find
from fedflat.rounds.cost import vector_cost
from support.federation import final_w
from support.problem import Problem, assert_agrees, unit
from support.quadratics import two_quadratics

FedLESAM = find("FedLESAM")


def layer_sum(p: Problem, v: np.ndarray) -> float:
    cuts = np.cumsum([x.numel() for x in p.module.parameters()])[:-1]
    return sum(np.linalg.norm(piece) for piece in np.split(v, cuts))


def transcription(
    p: Problem, rho: float, direction: str = "client_old", first: str = "none", norm: str = "global"
) -> np.ndarray:
    w, before = p.w0, p.w0
    old: dict[int, np.ndarray] = {}
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            if direction == "server_last":
                back = before - w
            else:
                back = old.get(i, np.zeros_like(w) if first == "literal_zero" else w) - w
            size = np.linalg.norm(back) if norm == "global" else layer_sum(p, back)
            e = rho * back / size if size > 0 else 0 * back
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v + e), p.lr(t))
            moves.append(v - w)
            old[i] = w
        before, w = w, w + p.mean(cohort, moves)
    return w


@pytest.mark.parametrize(
    "options",
    [{}, {"direction": "server_last"}, {"first": "literal_zero"}, {"norm": "layer_sum"}],
    ids=lambda options: "-".join(options.values()) or "paper",
)
def test_transcription(options: dict[str, str]) -> None:
    method = FedLESAM(rho=0.3, **options)
    assert_agrees(lambda p: transcription(p, 0.3, **options), method, ("uniform", "samples"))


def test_both_directions_are_one_if_everybody_takes_part() -> None:
    runs = [final_w(FedLESAM(rho=0.3, direction=d), participation=1.0) for d in ("client_old", "server_last")]
    assert (runs[0] - runs[1]).abs().max() <= 1e-12
    partial = [final_w(FedLESAM(rho=0.3, direction=d)) for d in ("client_old", "server_last")]
    assert (partial[0] - partial[1]).abs().max() > 1e-6


def test_the_servers_direction_costs_a_second_vector_down_and_none_at_the_client() -> None:
    costs = [vector_cost(FedLESAM(direction=d)) for d in ("client_old", "server_last")]
    assert [(c.down, c.up, c.client, c.server) for c in costs] == [(1, 1, 1, 1), (2, 1, 0, 2)]


def test_the_released_indexing_bug_is_another_perturbation() -> None:
    """The released optimiser adds to every entry of parameter l one scalar, entry l of the flat update: it is
    longer than rho and nearly orthogonal to the update. Nothing of it is in the package."""
    rng = np.random.default_rng(0)
    sizes, rho = [4000, 40, 2000, 50, 500, 10], 0.1
    update = rng.normal(size=sum(sizes))
    ours = rho * unit(-update)
    released = np.concatenate(
        [np.full(n, -rho * update[layer] / np.abs(update[: len(sizes)]).sum()) for layer, n in enumerate(sizes)]
    )
    assert np.linalg.norm(ours) == pytest.approx(rho)
    assert np.linalg.norm(released) > 5 * rho
    assert abs(released @ ours) / np.linalg.norm(released) / rho < 0.1


def test_first_participation_is_unperturbed_later_ones_go_back_along_the_servers_move() -> None:
    q = two_quadratics(steps=1)
    method = FedLESAM(rho=0.2)
    server, kept = q.run(method, 2, cohorts=[[0], [0]])
    assert torch.equal(q.asked[0][0], torch.zeros(2).double())
    start = server.w
    q.asked.clear()
    q.round(method, server, kept, [0, 1], 2)
    move = start - kept[0].w_old
    torch.testing.assert_close(q.asked[0][0], start - 0.2 * move / move.norm(), rtol=0, atol=1e-12)
    assert torch.equal(q.asked[0][1], start), "client 1 takes part for the first time"


def test_perturbation_is_constant_over_the_round_and_costs_no_gradient() -> None:
    """For a shift e the path is that of gradient descent on the shifted quadratic."""
    q = two_quadratics()
    method = FedLESAM(rho=0.2)
    server, kept = q.run(method, 1)
    q.asked.clear()
    down = method.broadcast(server).map(lambda x: x.expand(2, -1))
    client = kept[0].map(lambda *xs: torch.stack(xs), kept[1])
    result = q.local(method, down, client, [0, 1])
    assert len(q.asked) == q.steps
    e = 0.2 * (client.w_old - down.w) / (client.w_old - down.w).norm(dim=-1, keepdim=True)
    centre = q.b - e
    closed_form = centre + (1 - q.lr * q.a) ** q.steps * (down.w - centre)
    torch.testing.assert_close(result.w, closed_form, rtol=0, atol=1e-12)


def test_a_server_that_stands_still_gives_no_perturbation() -> None:
    q = two_quadratics(steps=1)
    method = FedLESAM(rho=0.5)
    server, kept = q.run(method, 1)
    here = server.map(torch.zeros_like)  # back where the clients saw it last
    q.asked.clear()
    q.round(method, here, kept, [0, 1], 1)
    assert torch.equal(q.asked[0], torch.zeros(2, 2).double())

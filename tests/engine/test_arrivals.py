"""Simulations with a guard and with attackers: what is in the mean, what is kept, and what does not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.records import record_norm
from fedflat.engine.ranks import Ranks
from fedflat.methods import find
from support.effort import chosen
from support.federation import federation, simulation

FLIP = ff.Attack(kind="sign-flip", share=0.3)


def numbers(sim: ff.Simulation) -> dict[str, float]:
    return {name: value for name, value in sim.history[-1].items() if name != "seconds"}


def test_a_guard_that_nothing_exceeds_changes_no_bit(covering_method: Method) -> None:
    """Whatever it would do; and of what a round reports it adds its own two numbers."""
    plain = simulation(covering_method, rounds=3)
    list(plain)
    for action in ("clip", "refuse"):
        sim = simulation(covering_method, rounds=3, guard=ff.Guard(bound=1e6, max_weight=1e6, action=action))
        list(sim)
        for name, x in plain.server.tensors().items():
            assert torch.equal(getattr(sim.server, name), x), name
        assert numbers(sim) == numbers(plain) | {"clipped": 0.0, "refused": 0.0}


def test_the_mean_of_clipped_moves_is_by_hand() -> None:
    """FedAvg with a bound that all exceed: each client's own move, as one client alone makes it, cut to the bound."""
    bound, method = 1e-3, ff.methods.FedAvg()
    sim = simulation(method, rounds=1, participation=[[0, 2, 5]], guard=ff.Guard(bound=bound))
    start = sim.w
    moves = []
    for client in (0, 2, 5):
        alone = simulation(method, rounds=1, participation=[[client]])
        list(alone)
        moves.append(alone.w - start)
    list(sim)
    assert min(float(move.norm()) for move in moves) > bound
    expected = sum(bound * move / move.norm() for move in moves) / 3
    torch.testing.assert_close(sim.w - start, expected, rtol=1e-9, atol=1e-12)
    assert (numbers(sim)["clipped"], numbers(sim)["refused"]) == (3.0, 0.0)


def test_a_refused_client_is_as_if_it_had_not_been_asked() -> None:
    """Neither the mean nor what it keeps knows of it; Scaffold's clients keep a control variate."""
    method, cohort = ff.methods.Scaffold(), [0, 1, 3]
    sent = {}
    for client in cohort:
        alone = simulation(method, rounds=1, participation=[[client]], guard=ff.Guard(multiple=1e9))
        list(alone)
        sent[client] = alone._server.guard.medians[0]
    longest = max(sent, key=lambda client: sent[client])
    bound = 0.5 * (sorted(sent.values())[-1] + sorted(sent.values())[-2])
    rest = [client for client in cohort if client != longest]
    guarded = simulation(method, rounds=1, participation=[cohort], guard=ff.Guard(bound=bound, action="refuse"))
    list(guarded)
    assert (numbers(guarded)["clients"], numbers(guarded)["refused"]) == (2.0, 1.0)
    without = simulation(method, rounds=1, participation=[rest])
    list(without)
    torch.testing.assert_close(guarded.w, without.w, rtol=0, atol=0)
    assert guarded._store.seen().tolist() == rest
    assert numbers(guarded)["drift"] == pytest.approx(numbers(without)["drift"], rel=1e-12)
    assert numbers(guarded)["bytes_up"] == pytest.approx(1.5 * numbers(without)["bytes_up"]), "it has sent all the same"


def test_if_all_are_refused_one_line_says_so_and_nothing_changes() -> None:
    sim = simulation(ff.methods.FedAvg(), guard=ff.Guard(bound=1e-9, action="refuse"))
    before = sim.w
    with pytest.raises(InputError, match=r"round 0: the guard refused all 3 clients, whose norms are .* at most 1e-09"):
        sim.round()
    assert torch.equal(sim.w, before)
    assert (sim.t, sim.history) == (0, [])


@pytest.mark.usefixtures("forked_processes")
@pytest.mark.slow
@pytest.mark.parametrize("executor", chosen(["stacked"], ["sequential", "stacked"]))
def test_workers_change_no_bit(executor: str) -> None:
    """Chunks of a round come from two processes."""
    found = []
    for workers in (1, 2):
        with simulation(ff.methods.FedExP(), rounds=2, participation=6, workers=workers, executor=executor,
                        guard=ff.Guard(bound=0.2, multiple=1.0), attack=FLIP) as sim:  # fmt: skip
            list(sim)
            found.append((sim.w, numbers(sim)))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedExP"])
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    def fresh(**changes) -> ff.Simulation:
        settings = {"guard": ff.Guard(multiple=1.2), "attack": FLIP} | changes
        return simulation(find(name)(), executor="sequential", **settings)

    whole, first, again = fresh(), fresh(), fresh()
    list(whole)
    for _ in range(3):
        first.round()
    first.save(tmp_path / "state.safetensors")
    again.load(tmp_path / "state.safetensors")
    assert again._server.guard == first._server.guard
    list(again)
    assert torch.equal(again.w, whole.w)
    assert numbers(again) == numbers(whole)
    for change, key in (({"guard": None}, "guard"), ({"guard": ff.Guard(multiple=1.3)}, r"guard\.multiple"),
                        ({"attack": None}, "attack")):  # fmt: skip
        with pytest.raises(InputError, match=f"{key} was"):
            fresh(**change).load(tmp_path / "state.safetensors")


def test_attackers_send_something_else_and_all_else_is_as_it_was() -> None:
    """One round of FedAvg: mean of honest moves, minus ten times those of the attackers."""
    method, everybody = ff.methods.FedAvg(), [list(range(6))]
    sim = simulation(method, rounds=1, participation=everybody, attack=FLIP)
    start, bad = sim.w, sim._attackers.clients.tolist()
    assert len(bad) == 2
    list(sim)
    moves = []
    for client in range(6):
        alone = simulation(method, rounds=1, participation=[[client]])
        list(alone)
        moves.append((alone.w - start) * (-10 if client in bad else 1))
    torch.testing.assert_close(sim.w - start, sum(moves) / 6, rtol=1e-9, atol=1e-12)
    assert numbers(sim)["attackers"] == 2.0


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("kind", ["inner-product", "little-is-enough"])
def test_colluding_attackers_know_the_honest_of_the_round(kind: str, executor: str) -> None:
    """The mean over all is that of n - m honest moves and m messages made of their mean and deviation."""
    method = ff.methods.FedAvg()
    attack = ff.Attack(kind=kind, share=0.3, scale=3.0, deviations=1.5)
    sim = simulation(method, rounds=1, participation=[list(range(6))], attack=attack, executor=executor)
    start, bad = sim.w, sim._attackers.clients.tolist()
    list(sim)
    moves = []
    for client in set(range(6)) - set(bad):
        alone = simulation(method, rounds=1, participation=[[client]])
        list(alone)
        moves.append((alone.w - start).numpy())
    mean, std = np.mean(moves, 0), np.std(moves, 0)
    message = -3 * mean if kind == "inner-product" else mean - 1.5 * std
    expected = (4 * mean + 2 * message) / 6
    np.testing.assert_allclose((sim.w - start).numpy(), expected, rtol=1e-6, atol=1e-9)


def test_claims_move_weights_and_the_guard_limits_them() -> None:
    """An attacker with a thousand times its samples owns the mean of FedAvg; at most twice the median it does not."""
    method, attack = ff.methods.FedAvg(), ff.Attack(kind="scaling", scale=1.0, share=0.15, claims=1000)
    settings = {
        "rounds": 1,
        "participation": [list(range(6))],
        "weights": "samples",
        "client": {"epochs": None, "steps": 3},
    }
    sims = [simulation(method, **settings, attack=attack, guard=guard) for guard in (None, ff.Guard(max_weight=2.0))]
    start, (bad,) = sims[0].w, sims[0]._attackers.clients.tolist()
    moves = []
    for client in range(6):
        alone = simulation(method, **(settings | {"participation": [[client]]}))
        list(alone)
        moves.append(alone.w - start)
    sizes = federation().sizes.astype(float)
    claimed = sizes * np.where(np.arange(6) == bad, 1000, 1)
    limited = np.minimum(claimed, 2 * np.sort(claimed)[2])
    for sim, weights in zip(sims, (claimed, limited), strict=True):
        list(sim)
        expected = sum(weight * move for weight, move in zip(weights, moves, strict=True)) / weights.sum()
        torch.testing.assert_close(sim.w - start, expected, rtol=1e-9, atol=1e-12)


def test_a_guard_bounds_the_move_of_every_method_under_every_attack(covering_method: Method) -> None:
    """What is in the mean is at most as long as the bound, for a mean is never longer than all of what it is of."""
    for kind in ("sign-flip", "noise", "inner-product", "little-is-enough", "scaling"):
        attack = ff.Attack(kind=kind, share=0.5, scale=1e6, deviations=1e6)
        sim = simulation(covering_method, rounds=1, participation=6, guard=ff.Guard(bound=0.05), attack=attack)
        mean = None
        update = sim._server.updated

        def kept(found, ctx, update=update):
            nonlocal mean
            mean = found
            return update(found, ctx)

        sim._server.updated = kept
        sim.round()
        value = mean.value()
        squared, ranges = value.marked("squared_length"), frozenset(value.ranges())
        gradients = value.marked("gradient_scale")
        norm = record_norm(value.map(lambda x: x[None]), torch.ones(1, 1), ranges | squared | gradients)
        assert float(norm) <= 0.05 * (1 + 1e-6), kind


def test_what_cannot_be_attacked_or_guarded_says_so() -> None:
    for name in ("Local", "Centralised"):
        for settings in ({"guard": ff.Guard(bound=1.0)}, {"attack": FLIP}):
            with pytest.raises(InputError, match="no client sends"):
                simulation(find(name)(), **settings)
    with pytest.raises(InputError, match="must know all messages of a round"):
        simulation(ff.methods.FedAvg(), attack=ff.Attack(kind="inner-product"), ranks=Ranks(number=2, alone=False))
    with pytest.raises(InputError, match="guard must be a Guard"):
        simulation(ff.methods.FedAvg(), guard=3.0)
    with pytest.raises(InputError, match="attack must be an Attack"):
        simulation(ff.methods.FedAvg(), attack="noise")

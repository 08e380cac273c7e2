from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.method_contract import CONTRACT
from fedflat.core.wrapper import label_of
from fedflat.methods import all_methods, find
from support import federation
from support.effort import chosen, in_test_all, in_turns
from support.federation import tanh_network
from support.problem import Problem, assert_agrees, unit

SWA, FedAvg, FedSAM, Scaffold = map(find, ("SWA", "FedAvg", "FedSAM", "Scaffold"))

# By hand, for the six rounds of `Problem`: begin, cycle, sample, the share of lr_low in the step size of each round,
# and the rounds whose models are averaged.
SCHEDULES = {
    "cycles of two from round 2": (1 / 3, 2, "cycle_end", (0, 0, 1 / 2, 1, 1 / 2, 1), {3, 5}),
    "cycles of three from round 1, one broken off": (1 / 6, 3, "cycle_end", (0, 1 / 3, 2 / 3, 1, 1 / 3, 2 / 3), {3}),
    "cycles of one from round 4": (0.7, 1, "cycle_end", (0,) * 6, {4, 5}),
    "released, cycles of two": (1 / 3, 2, "released", (0, 0, 1 / 2, 1, 1 / 2, 1), {4}),
    "released, a phase that does not fit": (1 / 6, 3, "released", (0, 2 / 3, 1, 1 / 3, 2 / 3, 1), {4}),
}
LOW = 0.02


def fedavg(p: Problem, rate: Callable[[int], float]) -> list[np.ndarray]:
    """The model after every round, with the step size `rate` of each."""
    w, models = p.w0, []
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v), rate(t))
            moves.append(v - w)
        w = w + p.mean(cohort, moves)
        models.append(w)
    return models


def fedsam(p: Problem, rate: Callable[[int], float], rho: float = 0.1) -> list[np.ndarray]:
    w, models = p.w0, []
    for t, cohort in enumerate(p.cohorts):
        moves = []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v + rho * unit(p.grad(i, v))), rate(t))
            moves.append(v - w)
        w = w + p.mean(cohort, moves)
        models.append(w)
    return models


def scaffold(p: Problem, rate: Callable[[int], float]) -> list[np.ndarray]:
    """It divides by the step size, so a wrong one in any hook shows."""
    w, c, own, models = p.w0, 0 * p.w0, dict.fromkeys(range(p.N), 0 * p.w0), []
    for t, cohort in enumerate(p.cohorts):
        moves, changes = [], []
        for i in cohort:
            v = w
            for _ in range(p.K):
                v = p.step(v, p.grad(i, v) - own[i] + c, rate(t))
            new = own[i] - c + (w - v) / (p.K * rate(t))
            moves.append(v - w)
            changes.append(new - own[i])
            own[i] = new
        w = w + sum(moves) / len(cohort)
        c = c + sum(changes) / p.N
        models.append(w)
    return models


BASES = {"FedAvg": (fedavg, FedAvg()), "FedSAM": (fedsam, FedSAM(rho=0.1)), "Scaffold": (scaffold, Scaffold())}


@pytest.mark.parametrize("name", BASES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_transcription(schedule: str, name: str) -> None:
    begin, cycle, sample, shares, averaged = SCHEDULES[schedule]
    trained, base = BASES[name]

    def average(p: Problem) -> np.ndarray:
        models = trained(p, lambda t: (1 - shares[t]) * p.lr(t) + shares[t] * LOW)
        return np.mean([models[t] for t in averaged], axis=0)

    weights = ("uniform",) if name == "Scaffold" else ("uniform", "samples")
    assert_agrees(average, SWA(base=base, begin=begin, cycle=cycle, lr_low=LOW, sample=sample), weights)


def trains_at_the_server(cls: type[Method]) -> bool:
    return cls.training != "local" and cls is not SWA and not cls.keeps_head


# Records for a round, a schedule within the round, a mean of its own and one pooled client.
USUAL = ("FedSMOO", "FedMoSWA", "FedExP", "Centralised")
FAMILY = {
    name: cls
    for name, cls in all_methods().items()
    if trains_at_the_server(cls) and name in chosen(USUAL, all_methods())
}
over_bases = pytest.mark.parametrize("base", FAMILY.values(), ids=FAMILY)
BOTH = ["sequential", "stacked"]


def simulation(method: Method, **changes) -> ff.Simulation:
    """Of seven rounds, which have several cycles."""
    return federation.simulation(method, **{"rounds": 7} | changes)


def models_of(sim: ff.Simulation) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The trained and the evaluated model after every round."""
    pairs = [(sim.server.w.clone(), sim.w.clone()) for _ in sim]
    trained, evaluated = zip(*pairs, strict=True)
    return list(trained), list(evaluated)


def single(method: Method, **changes) -> ff.Simulation:
    """In single precision, where another order of operations would show."""
    return simulation(method, model=tanh_network().float(), dtype=torch.float32, **changes)


@over_bases
@pytest.mark.parametrize("executor", chosen(["sequential"], BOTH))
def test_from_the_last_round_on_it_is_the_base(base: type[Method], executor: str) -> None:
    plain, around = (models_of(single(method, executor=executor)) for method in (base(), SWA(base=base(), begin=1)))
    for one, other in zip(plain, around, strict=True):
        assert all(map(torch.equal, one, other))


@over_bases
@pytest.mark.parametrize("executor", chosen(["stacked"], BOTH))
def test_with_the_bases_step_size_the_iterates_are_the_bases_and_their_mean_is_evaluated(
    base: type[Method], executor: str
) -> None:
    """Seven rounds from round 2 on in cycles of two: models after rounds 3 and 5."""
    trained, evaluated = models_of(single(base(), executor=executor))
    around = single(SWA(base=base(), begin=0.3, cycle=2, lr_low=None), executor=executor)
    iterates, averages = models_of(around)
    assert all(map(torch.equal, trained, iterates))
    assert all(map(torch.equal, evaluated[:3], averages[:3]))
    expected = [trained[3], trained[3], (trained[3] + trained[5]) / 2, (trained[3] + trained[5]) / 2]
    for one, other in zip(expected, averages[3:], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-7)
    assert around.server.swa_models == 2


@over_bases
def test_cycles_of_one_average_every_iterate(base: type[Method]) -> None:
    trained, _ = models_of(simulation(base()))
    iterates, averages = models_of(simulation(SWA(base=base(), begin=0.5, cycle=1, lr_low=1e-3)))
    assert all(map(torch.equal, trained, iterates))
    torch.testing.assert_close(averages[-1], torch.stack(trained[3:]).mean(0), rtol=0, atol=1e-14)


@over_bases
def test_a_cycle_that_does_not_end_is_the_base_with_the_bases_step_size(
    base: type[Method], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, as nothing would be averaged; the equality holds all the same."""
    monkeypatch.setattr(SWA, "check_rounds", lambda self, rounds: None)
    plain, around = (models_of(simulation(m)) for m in (base(), SWA(base=base(), begin=0.5, cycle=5, lr_low=None)))
    for one, other in zip(plain, around, strict=True):
        assert all(map(torch.equal, one, other))
    falling = models_of(simulation(SWA(base=base(), begin=0.5, cycle=5)))[0]
    assert not torch.equal(falling[-1], plain[0][-1])


@over_bases
def test_executors_agree_and_the_average_goes_on_from_a_checkpoint(base: type[Method], tmp_path: Path) -> None:
    """One is written before the first model is averaged, one after."""
    method = SWA(base=base(), begin=0.3, cycle=2)
    one, many = (models_of(simulation(method, executor=executor)) for executor in ("sequential", "stacked"))
    torch.testing.assert_close(one[1][-1], many[1][-1], rtol=0, atol=1e-12)
    first = simulation(method, executor="sequential")
    for t, _ in enumerate(first, start=1):
        if t in (2, 5):
            first.save(tmp_path / f"{t}.safetensors")
            resumed = simulation(method, executor="sequential")
            resumed.load(tmp_path / f"{t}.safetensors")
            assert all(map(torch.equal, models_of(resumed)[1], one[1][t:]))
            assert [row["lr"] for row in resumed.history] == [row["lr"] for row in first.history[:t]] + [
                row["lr"] for row in resumed.history[t:]
            ]


@over_bases
def test_the_release_averages_other_models(base: type[Method]) -> None:
    ends = [simulation(SWA(base=base(), begin=0.3, cycle=2, sample=s)).run().w for s in ("cycle_end", "released")]
    assert (ends[0] - ends[1]).abs().max() > 1e-5


@over_bases
def test_messages_and_gradients_are_the_bases(base: type[Method]) -> None:
    from fedflat.rounds.cost import full_passes_per_round, gradients_per_step, method_cost

    one, other = base().fitted((3, 2, 2)), SWA(base=base()).fitted((3, 2, 2))
    costs = [method_cost(method, 1000) for method in (one, other)]
    assert replace(costs[0], server=costs[0].server + 1001) == costs[1]  # the average, and how many models are in it
    assert gradients_per_step(one) == gradients_per_step(other)
    assert full_passes_per_round(one) == full_passes_per_round(other)
    assert (one.weights, one.training, one.penalty, one.needs_equal_weights) == (
        other.weights, other.training, other.penalty, other.needs_equal_weights,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("promise", "base"),
    in_turns(
        [name for name in CONTRACT if "hyper" not in name and "annotations" not in name],
        [name for name, cls in FAMILY.items() if cls.training == "federated"],
    ),
)
def test_contract_around(promise: str, base: str) -> None:
    CONTRACT[promise](SWA(base=FAMILY[base](), begin=0.0, cycle=1))


def test_the_step_size_of_every_round_and_hook() -> None:
    """Ten rounds, the last four of which are a cycle: by hand, with the base's decay."""
    seen: dict[str, list[float]] = {"step": [], "finish": [], "receive": [], "update": []}

    class Spy(FedAvg):
        """client  -  server  -"""

        def step(self, w, client, down, grad, ctx):
            seen["step"].append(ctx.lr)
            return super().step(w, client, down, grad, ctx)

        def finish(self, w, client, down, ctx):
            seen["finish"].append(float(ctx.lr_sum) / float(ctx.steps))
            return super().finish(w, client, down, ctx)

        def receive(self, up, ctx):
            seen["receive"].append(float(ctx.lr_sum) / float(ctx.steps))
            return super().receive(up, ctx)

        def update(self, server, mean, ctx):
            seen["update"].append(float(ctx.lr_sum) / float(ctx.steps))
            return super().update(server, mean, ctx)

    settings = {"rounds": 10, "participation": 1, "client": {"steps": 1, "epochs": None, "lr": 0.4, "lr_decay": 0.5}}
    sim = simulation(SWA(base=Spy(), begin=0.6, cycle=4, lr_low=0.001), executor="sequential", **settings)
    expected = [0.4 * 0.5**t for t in range(6)]
    expected += [(1 - s / 4) * 0.4 * 0.5**t + s / 4 * 0.001 for t, s in ((6, 1), (7, 2), (8, 3), (9, 4))]
    sim.run()
    assert [row["lr"] for row in sim.history] == pytest.approx(expected, rel=1e-14)
    for hook, rates in seen.items():
        assert rates == pytest.approx(expected, rel=1e-14), hook


def test_a_schedule_within_the_round_starts_from_the_step_size_of_the_round() -> None:
    """FedSWA with K steps: lr' (K (1 + rho) + (1 - rho)) / 2 in all, with the lr' that SWA gives it."""
    seen = []

    class Spy(find("FedSWA")):
        """client  -  server  -"""

        def update(self, server, mean, ctx):
            seen.append(float(ctx.lr_sum))
            return super().update(server, mean, ctx)

    client = {"steps": 5, "epochs": None, "lr": 0.1, "lr_decay": 1.0}
    simulation(SWA(base=Spy(rho=0.2), begin=0.0, cycle=2, lr_low=0.01), rounds=2, client=client).run()
    assert seen == pytest.approx([lr * (5 * 1.2 + 0.8) / 2 for lr in (0.055, 0.01)], rel=1e-14)


def test_share_of_rounds_that_floating_point_cannot_write() -> None:
    """0.7 of 10 rounds are 7, though 0.7 * 10 may be less; 0.29 of 100 are 29, though 0.29 * 100 is less."""
    assert 0.29 * 100 < 29
    for begin, rounds, first in ((0.7, 10, 7), (0.29, 100, 29), (0.75, 10, 7), (1 / 3, 6, 2)):
        method = SWA(begin=begin, cycle=1)
        kept = [method._is_averaged(t, method._first_round(rounds)) for t in range(rounds)]
        assert kept == [False] * first + [True] * (rounds - first)


def test_both_models_are_in_the_history() -> None:
    sim = simulation(SWA(begin=0.3, cycle=2))
    for row in (result.metrics for result in sim):
        same = row["test_loss"] == row["test_loss_iterate"]
        assert same == torch.equal(sim.w, sim.server.w) == (sim.t <= 4)  # the first mean is of one model
        plain = ff.metrics.accuracy.score(sim.objective, sim.server.w, *sim.data.test, sim.data.preparation)
        assert row["test_accuracy_iterate"] == plain.accuracy
        assert row["test_loss_iterate"] == pytest.approx(plain.mean_loss, rel=1e-12)
    run = sim.result()
    assert run.summary["test_accuracy_iterate_last"] == sim.history[-1]["test_accuracy_iterate"]
    assert run.summary["test_accuracy_last"] == sim.history[-1]["test_accuracy"]
    assert torch.equal(run.w, sim.server.swa_average)
    written = torch.cat([x.flatten() for x in run.model.parameters()]).detach()
    assert torch.equal(written, run.w)
    assert not torch.equal(run.w, sim.server.w)


def test_a_method_that_evaluates_what_it_trains_reports_it_once() -> None:
    sim = simulation(FedAvg(), rounds=1)
    assert not [name for name in sim.round().metrics if "iterate" in name]


@pytest.mark.slow
def test_a_run_of_other_rounds_is_not_gone_on_with(tmp_path: Path) -> None:
    method = SWA(begin=0.0, cycle=2)
    sim = simulation(method)
    sim.round()
    sim.save(tmp_path / "one")
    for rounds in (6, 9):
        with pytest.raises(InputError, match=f"depends on the number of rounds, which was .* and is {rounds}$"):
            simulation(method, rounds=rounds).load(tmp_path / "one")
    simulation(method).load(tmp_path / "one")
    for other, difference in (
        (SWA(begin=0.0, cycle=3), "method.cycle was 2, now it is 3"),
        (SWA(base=FedAvg(server_lr=0.5), begin=0.0, cycle=2), "method.base.server_lr was 1.0, now it is 0.5"),
        (SWA(base=FedSAM(), begin=0.0, cycle=2), "method.base was FedAvg, now it is FedSAM"),
        (FedAvg(), "method was SWA, now it is FedAvg"),
    ):
        with pytest.raises(InputError, match=difference):
            simulation(other).load(tmp_path / "one")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: SWA(base=SWA()), r"^SWA\.base: SWA is a wrapper itself; .* needs a plain method"),
        (lambda: SWA(base=find("Local")()), r"^SWA\.base: Local trains each client alone, so the server has no models"),
        (lambda: SWA(base=FedAvg), r"^SWA\.base must be a method, got <class"),
        (lambda: SWA(base="FedAvg"), r"^SWA\.base must be a method, got 'FedAvg'"),
        (lambda: SWA(base=None), r"^SWA\.base must be a method, got None"),
        (lambda: SWA(begin=-0.1), r"^SWA\.begin must be a number in \[0, 1\], got -0\.1"),
        (lambda: SWA(begin=1.1), r"^SWA\.begin must be a number in \[0, 1\], got 1\.1"),
        (lambda: SWA(cycle=0), r"^SWA\.cycle must be a whole number in \[1, inf\), got 0"),
        (lambda: SWA(cycle=1.5), r"^SWA\.cycle must be a whole number"),
        (lambda: SWA(lr_low=0), r"^SWA\.lr_low must be a number in \(0, inf\) or none, got 0"),
        (lambda: SWA(sample="last"), r"^SWA\.sample must be one of 'cycle_end', 'released'"),
        (lambda: SWA(start=0.5), r"^SWA has no field 'start'; it has base, begin, cycle, lr_low, sample"),
        (lambda: SWA(FedAvg()), r"^SWA takes its values by name, such as SWA\(base=\.\.\.\)"),
        (lambda: simulation(SWA(), rounds=20), r"^rounds = 20: SWA-FedAvg would average no model, as 5 rounds"),
        (lambda: simulation(SWA(begin=0.0, cycle=7, sample="released")), "^rounds = 7: .* would average no model"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_weights_that_the_base_refuses_are_refused() -> None:
    with pytest.raises(InputError, match=r"weights = 'samples' does not fit SWA-Scaffold"):
        simulation(SWA(base=Scaffold(), begin=0), weights="samples")


def test_it_is_written_as_it_is_made() -> None:
    method = SWA(base=find("FedASAM")(rho=0.7), begin=0.5)
    names = {"SWA": SWA, "FedASAM": find("FedASAM")}
    assert eval(repr(method), names) == method
    assert label_of(method) == "SWA-FedASAM"
    assert method != SWA(base=find("FedASAM")(rho=0.6), begin=0.5)


@in_test_all
@pytest.mark.slow
def test_workers_change_no_bit() -> None:
    """In `make test` this method is one of those that pass through a worker's memory (`test_workers.py`)."""
    method = SWA(base=find("FedMoSWA")(), begin=0.3, cycle=2)
    alone = simulation(method, executor="sequential").run()
    with simulation(method, executor="sequential", workers=2) as sim:
        assert torch.equal(sim.run().w, alone.w)


@pytest.mark.slow
@pytest.mark.usefixtures(*chosen(["traced"], []))
@pytest.mark.parametrize("base", chosen(["FedMoSWA"], ["FedASAM", "FedMoSWA", "FedExP"]))
def test_compiled_steps_agree(base: str) -> None:
    method = SWA(base=find(base)(), begin=0.3, cycle=2)
    ends = [simulation(method, executor=executor) for executor in ("stacked", "compiled")]
    torch.testing.assert_close(*(sim.run().w for sim in ends), rtol=0, atol=1e-12)
    assert ends[1].executor.step.works


def test_centralised_training_is_averaged_too() -> None:
    """As in the paper that averaging is from, which has one model and one set of samples."""
    sim = simulation(SWA(base=find("Centralised")(), begin=0.3, cycle=2))
    trained, averages = models_of(sim)
    torch.testing.assert_close(averages[-1], (trained[3] + trained[5]) / 2, rtol=0, atol=1e-15)

"""Private simulations: for every method, what one client can move, what the rounds may know, and what they report."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.records import record_norm
from fedflat.core.wrapper import Wrapper
from fedflat.engine.cohort import InProcess
from fedflat.methods import all_methods, find
from fedflat.rounds.private_mean import PrivateMean
from fedflat.rounds.private_rounds import PrivateRounds
from support.federation import simulation

CLIP, NOISE, RATE = 0.3, 1.0, 0.4
PRIVACY = ff.Privacy(epsilon=1000.0, delta=0.01, clip=CLIP, rate=RATE, noise_multiplier=NOISE,
                     noise="seeded-not-private")  # fmt: skip


def private(method: Method | None = None, privacy: ff.Privacy = PRIVACY, **changes) -> ff.Simulation:
    settings = {
        "rounds": 7,
        "participation": 1.0,
        "client": {"epochs": None, "steps": 4},
        "privacy": privacy,
        "eval_every": 3,
    } | changes
    return simulation(method or find("FedAvg")(), **settings)


def changed(**changes) -> ff.Privacy:
    return ff.Privacy(**{**vars(PRIVACY), **changes})


def hostile() -> ff.FederatedData:
    """Six clients, of whom the first has inputs a million times as large."""
    rng = np.random.default_rng(0)
    clients = [(rng.normal(i / 4, 1, (9, 6)), rng.integers(3, size=9)) for i in range(6)]
    clients[0] = (clients[0][0] * 1e6, clients[0][1])
    return ff.FederatedData.from_clients(clients, classes=3)


def mean_of(sim: ff.Simulation, cohort: list[int]) -> PrivateMean:
    """What a real round with these clients has added up; nothing is kept."""
    return sim._compute(np.array(cohort, dtype=np.int64), InProcess(sim.executor), keep=False)[0].mean


def distance(sim: ff.Simulation, one: PrivateMean, other: PrivateMean) -> float:
    """How far two sums lie apart, all fields in the unit of parameters; written anew for the test."""
    total = 0.0
    gradients, lr_sum = (
        sim.method.mean.marked("gradient_scale"),
        float(one.lr_factors) * sim.client.lr_at(sim.t, sim.rounds),
    )
    for name, x, y in zip(sim.method.mean.__match_args__, one.sums(), other.sums(), strict=False):
        total += float(((x.value() - y.value()) * (lr_sum if name in gradients else 1.0)).square().sum())
    return total**0.5


def test_adding_or_removing_one_client_moves_the_sum_by_at_most_the_clip(method: Method) -> None:
    """Of every method, in real rounds, for usual clients and for one that sends as much as it can."""
    clip = 0.01
    sim = private(method, changed(clip=clip), data=hostile())
    sim.round()
    moved = []
    for cohort, client in (([0, 1, 2, 4], 0), ([1, 2, 3], 3), ([0], 0)):
        without = [one for one in cohort if one != client]
        moved.append(distance(sim, mean_of(sim, cohort), mean_of(sim, without)))
    assert max(moved) <= clip * (1 + 1e-12)  # sums of squares are rounded here; the mean itself has no slack
    # The hostile client is clipped, not dropped; without its head, it sends a saturated body, which does not move.
    assert moved[0] > 0.999 * clip or method.keeps_head


def test_every_method_trains_on_noised_means_and_empty_rounds(covering_method: Method) -> None:
    """Every field of the mean has noise, and six rounds, some without anybody, end with a finite model."""
    sim = private(covering_method, changed(rate=0.15, noise_multiplier=2.0))
    cohorts = [len(sim.cohort(sim.t)) for _ in sim] + [0]
    assert 0 in cohorts
    assert sim.w.isfinite().all()
    nobody = mean_of(sim, []).value()
    assert all((x != 0).all() for x in nobody.tensors().values() if x.numel())


def test_a_round_of_nobody_moves_the_model_by_noise() -> None:
    sim = private(privacy=changed(rate=1e-9))
    before = sim.w.clone()
    assert len(sim.cohort(0)) == 0
    sim.round()
    moved = (sim.w - before) * 6 * 1e-9  # times the expected number of clients
    assert float(moved.std()) == pytest.approx(NOISE * CLIP, rel=0.4)  # of 73 numbers


def test_methods_see_the_expected_number_of_participants_and_no_other() -> None:
    sim = private(find("Scaffold")())
    results = [sim._compute(sim.cohort(0)[:n], InProcess(sim.executor), False)[0] for n in range(3)]
    contexts = {(c.share, c.sampled) for c in (result.cohort.ctx for result in results)}
    assert contexts == {(RATE, round(RATE * 6))}


@pytest.mark.slow
def test_noise_and_cohorts_of_the_system_are_not_those_of_the_seed() -> None:
    one, other = private(privacy=changed(noise="system")), private(privacy=changed(noise="system"))
    for sim in (one, other):
        sim.run()
    assert not torch.equal(one.w, other.w)
    drawn = {tuple(private(privacy=changed(noise="system")).cohort(0)) for _ in range(5)}
    assert len(drawn) > 1


def test_the_seeded_mode_says_in_its_name_that_it_is_not_private_and_repeats() -> None:
    one, other = private(), private(executor="stacked")
    for sim in (one, other):
        sim.run()
    torch.testing.assert_close(one.w, other.w, rtol=1e-9, atol=1e-9)
    assert one.settings()["privacy"]["noise"] == "seeded-not-private"


def test_the_key_of_a_round_is_drawn_once_and_those_of_earlier_rounds_are_forgotten() -> None:
    sim = private(privacy=changed(noise="system"))
    assert sim.cohort(0).tolist() == sim.cohort(0).tolist()
    first = sim._private._round_key(0).key
    sim.round()
    with pytest.raises(InputError, match="drawn when that round is the next one"):
        sim.cohort(0)
    assert sim._private._round_key(1).key != first
    with pytest.raises(ValueError, match="does not follow"):
        sim._private._round_key(0)


def test_several_ranks_take_the_key_of_the_first() -> None:
    heard = []

    def shared(mine: str) -> str:
        heard.append(mine)
        return heard[0]

    arguments = (changed(noise="system"), find("FedAvg")(), ff.Client(steps=2), 100, 3, 0)
    one, other = PrivateRounds(*arguments, shared), PrivateRounds(*arguments, shared)
    assert one.cohort(0).tolist() == other.cohort(0).tolist()
    assert heard[0] != heard[1]


def test_a_resumed_run_has_the_same_bits_and_knows_what_it_has_spent(tmp_path: Path) -> None:
    whole, first, second = private(), private(), private()
    whole.run()
    for _ in range(3):
        first.round()
    first.save(tmp_path / "state.safetensors")
    second.load(tmp_path / "state.safetensors")
    second.run()
    assert torch.equal(whole.w, second.w)
    meta = ff.rounds.checkpoint.load(tmp_path / "state.safetensors")[1]["privacy"]
    assert (meta["rounds"], meta["epsilon"]) == (3, whole.history[2]["epsilon"])


def test_a_checkpoint_of_another_privacy_is_refused(tmp_path: Path) -> None:
    private().save(tmp_path / "state.safetensors")
    with pytest.raises(InputError, match=r"privacy\.clip was 0\.3, now it is 1\.0"):
        private(privacy=changed(clip=1.0)).load(tmp_path / "state.safetensors")


def test_epsilon_grows_with_the_rounds_and_is_in_metrics_and_summary() -> None:
    sim = private(eval_every=3)
    run = sim.run()
    told = [row["epsilon"] for row in sim.history if "epsilon" in row]
    assert [row["t"] for row in sim.history if "epsilon" in row] == [2, 5, 6]
    assert told == sorted(set(told))
    assert run.summary["epsilon"] == told[-1] < run.summary["epsilon_replace_one"]
    assert (run.summary["delta"], run.summary["noise_multiplier"]) == (0.01, NOISE)


def test_nothing_of_the_clients_is_reported_unless_it_is_asked_for() -> None:
    """With one seed and other clients taking part: no number differs but those of the test set, and seconds."""
    one = private().run()
    assert not {"clients", "drift", "train_loss"} & set(one.metrics.column_names)
    assert isnan(one.summary["train_loss"])
    assert isnan(one.summary["drift"])
    assert not any(name.startswith("client_accuracy") for name in one.summary)
    spent = [(row["gradients"], row["bytes_up"]) for row in one.metrics.to_pylist()]
    each = 73 * 8  # bytes of the model of the test, in double precision
    expected = [((t + 1) * RATE * 6 * 4, (t + 1) * RATE * 6 * each) for t in range(7)]
    assert np.allclose(spent, expected, rtol=1e-12)


def test_a_run_that_would_exceed_its_epsilon_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"7 rounds .* spend epsilon = .*, and privacy.epsilon allows 1;") as error:
        private(privacy=changed(epsilon=1.0))
    assert "\n" not in str(error.value)


def test_no_round_is_computed_beyond_epsilon() -> None:
    sim = private(privacy=changed(epsilon=private().run().summary["epsilon"]))
    sim.run()
    before = sim.w.clone()
    with pytest.raises(InputError, match="8 rounds"):
        sim.round()
    assert (sim.t, torch.equal(sim.w, before)) == (7, True)


@pytest.mark.slow
def test_a_target_epsilon_is_met_and_not_exceeded() -> None:
    run = private(privacy=changed(epsilon=3.0, noise_multiplier=None)).run()
    assert 2.98 < run.summary["epsilon"] <= 3.0


REFUSED = {
    "participation = 3": {"participation": 3},
    "participation = Bernoulli": {"participation": ff.Bernoulli(0.5)},
    "weights = 'samples'": {"weights": "samples"},
    "client.steps": {"client": {"epochs": 1, "steps": None}},
    "Local is local": {"method": find("Local")()},
    "Centralised is centralised": {"method": find("Centralised")()},
    "privacy.delta = 0.2": {"privacy": changed(delta=0.2)},
    "privacy.clip_without_public does not go with FedSAM": {
        "method": find("FedSAM")(),
        "privacy": changed(clip_without_public=True),
    },
    "privacy must be": {"privacy": 8.0},
    "privacy does not go with guard": {"guard": ff.Guard(multiple=2.0)},
    "privacy does not go with guard or attack": {"attack": ff.Attack(kind="noise", share=0.2)},
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_private_is_refused(what: str) -> None:
    with pytest.raises(InputError, match=what):
        private(**REFUSED[what])


@pytest.mark.parametrize(
    "missing", [{"epsilon": 0.0}, {"clip": -1.0}, {"rate": 1.5}, {"noise": "seed"}, {"noise_multiplier": 0.0}], ids=str
)
def test_a_setting_out_of_range_is_named(missing: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"privacy.{next(iter(missing))} must be"):
        changed(**missing)


def test_what_has_no_default_must_be_given() -> None:
    with pytest.raises(InputError, match="Privacy needs delta, rate"):
        ff.Privacy(epsilon=1.0, clip=1.0)


def test_a_measure_of_the_next_round_draws_nothing_and_changes_nothing() -> None:
    plain, measured = private(), private(probes=["consistency"], probe_every=2)
    for sim in (plain, measured):
        sim.run()
    assert torch.equal(plain.w, measured.w)


def test_the_norm_that_is_bounded_is_that_of_the_whole_record() -> None:
    """SCAFFOLD sends two vectors: each alone may be as long as the clip, both together not."""
    clip = 0.01
    sim = private(find("Scaffold")(), changed(clip=clip), data=hostile())
    mean = mean_of(sim, [0])
    sums = {name: x.value() for name, x in zip(("delta", "dc"), mean.sums(), strict=False)}
    lr_sum = torch.tensor([[float(mean.lr_factors) * 0.1]], dtype=torch.float64)
    both = sim.method.mean(delta=sums["delta"][None], dc=sums["dc"][None])
    assert float(record_norm(both, lr_sum)) == pytest.approx(clip, rel=1e-5)


PUBLIC = sorted(name for name, cls in all_methods().items() if cls.public not in (Method.public, Wrapper.public))


@pytest.mark.parametrize("name", PUBLIC)
def test_without_the_public_part_one_client_moves_the_sum_by_at_most_the_clip(name: str) -> None:
    clip = 0.01
    sim = private(find(name)(), changed(clip=clip, clip_without_public=True), data=hostile())
    sim.round()
    moved = [
        distance(sim, mean_of(sim, cohort), mean_of(sim, without)) for cohort, without in (([0, 1], [1]), ([0], []))
    ]
    assert max(moved) <= clip * (1 + 1e-12)
    assert moved[0] > 0.999 * clip


def test_what_is_clipped_away_leaves_the_public_part() -> None:
    """With nothing left of what clients know, FedCM moves along the last direction: by -(1 - alpha) lr K Delta."""
    alpha = 0.25
    sim = private(find("FedCM")(alpha=alpha), changed(clip=1e-9, clip_without_public=True))
    direction = torch.linspace(-1, 1, len(sim.w), dtype=sim.w.dtype)
    sim._server.state = replace(sim._server.state, direction=direction)
    before, lr = sim.w, sim.client.lr
    sim.round()
    torch.testing.assert_close(sim.w - before, -(1 - alpha) * lr * 4 * direction, rtol=0, atol=1e-7)
    torch.testing.assert_close(sim.server.direction, (1 - alpha) * direction, rtol=0, atol=1e-6)


def test_with_a_bound_that_nobody_reaches_and_all_clients_the_public_part_changes_nothing() -> None:
    """The mean of x - c, and c, is the mean of x, if all take part; the noise is the same."""
    runs = [
        private(find("MoFedSAM")(), changed(clip=10.0, rate=1.0, noise_multiplier=0.01, epsilon=1e6,
                                            clip_without_public=public)).run()
        for public in (False, True)
    ]  # fmt: skip
    torch.testing.assert_close(runs[0].w, runs[1].w, rtol=0, atol=1e-5)  # records are rounded to a grid
    assert not torch.equal(runs[0].w, runs[1].w)

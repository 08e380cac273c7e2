"""A state of a private run that is continued many times: one noise for one sum, and other sums are counted."""

from __future__ import annotations

import shutil
from collections import Counter
from math import sqrt
from pathlib import Path

import dp_accounting as dp
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.files import PRIVATE
from fedflat.methods import find
from fedflat.rounds import checkpoint
from fedflat.rounds.accountant import epsilon
from fedflat.rounds.checkpoint import DamagedError
from fedflat.rounds.private_rounds import add_to_log, logs_in, read_log
from support.federation import simulation

RATE, NOISE, DELTA = 0.9, 10.0, 1e-3
PRIVACY = ff.Privacy(epsilon=1000.0, delta=DELTA, clip=0.3, rate=RATE, noise_multiplier=NOISE)


def private(method: str = "FedAvg", **changes) -> ff.Simulation:
    settings = {"participation": 1.0, "client": {"epochs": None, "steps": 4}, "privacy": PRIVACY, "rounds": 4,
                "executor": "stacked"}  # fmt: skip
    return simulation(find(method)(), **settings | changes)


def saved(folder: Path, rounds: int = 1, **changes) -> Path:
    folder.mkdir(exist_ok=True)
    sim = private(**changes)
    for _ in range(rounds):
        sim.round()
    sim.save(folder / "state.safetensors")
    return folder / "state.safetensors"


def continued(path: Path, other: float = 0.0, rounds: int = 1, **changes) -> ff.Simulation:
    """The simulation of a state, some rounds later; `other` is added to its model, as other hardware would."""
    sim = private(**changes)
    sim.load(path)
    sim._server.state = sim._server.state.map(lambda x: x + other)
    for _ in range(rounds):
        sim.round()
    return sim


def stated(rounds: int, *again: int) -> float:
    """The epsilon of so many rounds, of which some had more sums than one, by Google's accountant."""
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for k, number in {**Counter(again), 1: rounds - len(again)}.items():
        accountant.compose(dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(NOISE / sqrt(k))), number)
    return accountant.get_epsilon(DELTA)


@pytest.mark.slow
def test_64_continuations_of_one_state_draw_one_noise(tmp_path: Path) -> None:
    """Their mean has the noise of each; it had an eighth of it, when each drew its own."""
    path = saved(tmp_path)
    models = torch.stack([continued(path).w for _ in range(64)])
    assert len(models.unique(dim=0)) == 1
    assert len(read_log(*logs_in(tmp_path))) == 2
    assert not torch.equal(models[0], continued(saved(tmp_path / "anew")).w)


def test_a_run_that_is_not_interrupted_tells_the_same(tmp_path: Path) -> None:
    """With records of clients, several rounds, and noise on two fields."""
    sim = private("Scaffold")
    sim.round()
    sim.save(tmp_path / "state.safetensors")
    list(sim)
    again = continued(tmp_path / "state.safetensors", method="Scaffold", rounds=3)
    assert torch.equal(sim.w, again.w)
    assert [row.get("epsilon") for row in sim.history] == [row.get("epsilon") for row in again.history]


@pytest.mark.slow
def test_another_sum_has_another_noise_and_is_counted(tmp_path: Path) -> None:
    path = saved(tmp_path)
    first, other = continued(path), continued(path, 1e-2)
    assert float((first.w - other.w).norm()) > 1  # by their noises: with the same one, by some 0.1
    assert first.history[-1]["epsilon"] == pytest.approx(stated(2), rel=1e-6)
    assert other.history[-1]["epsilon"] == pytest.approx(stated(2, 2), rel=1e-6)
    assert other.result().summary["epsilon"] == pytest.approx(stated(2, 2), rel=1e-6)
    other.save(tmp_path / "other.safetensors")
    assert checkpoint.load(tmp_path / "other.safetensors")[1]["privacy"]["epsilon"] == other.history[-1]["epsilon"]


@pytest.mark.slow
def test_a_run_counts_what_others_release_of_its_states_meanwhile(tmp_path: Path) -> None:
    """It learns of them with its next round; of a round that it has not come to, too."""
    path = saved(tmp_path)
    sim = continued(path)
    continued(path, 1e-2, rounds=3)
    sim.round()
    assert sim.history[-1]["epsilon"] == epsilon(RATE, NOISE, 3, DELTA, again=(2, 2))
    assert sim.result().summary["epsilon"] == epsilon(RATE, NOISE, 4, DELTA, again=(2, 2))


@pytest.mark.slow
def test_what_would_spend_more_than_is_allowed_is_refused_before_its_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not counted: the run itself goes on to its end."""
    solved = ff.Privacy(epsilon=3.0, delta=DELTA, clip=0.3, rate=1.0)
    path = saved(tmp_path, privacy=solved)
    continued(path, privacy=solved)
    with monkeypatch.context() as patch:
        patch.setattr("fedflat.rounds.private_mean.normal_deviates", None)
        with pytest.raises(InputError, match="1 of them released again") as error:
            continued(path, 1e-2, privacy=solved)
    assert "\n" not in str(error.value)
    assert continued(path, rounds=3, privacy=solved).result().summary["epsilon"] <= 3.0


def test_states_in_several_folders_know_of_each_other(tmp_path: Path) -> None:
    sim = private()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sim.round()
        sim.save(tmp_path / name / "state.safetensors")
    sim.round()
    logs = [read_log(*logs_in(tmp_path / name)) for name in ("one", "two")]
    assert logs[0] == logs[1]
    assert {t for t, _ in logs[0]} == {0, 1, 2}
    shutil.rmtree(tmp_path / "one")
    sim.round()  # no state is there any more
    assert not (tmp_path / "one").exists()


def test_a_copy_with_its_log_repeats_the_noise_and_one_without_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    shutil.copy(path, copy)
    with pytest.raises(InputError, match=r"released-[0-9a-f]{16}\.log cannot be read: No such file"):
        continued(copy)
    shutil.copy(*logs_in(tmp_path), copy.parent)
    assert torch.equal(continued(copy).w, continued(path).w)


def test_an_older_state_has_the_keys_of_later_rounds_and_not_the_other_way_round(tmp_path: Path) -> None:
    older = saved(tmp_path)
    newer = tmp_path / "newer.safetensors"
    continued(older).save(newer)
    assert torch.equal(continued(older, rounds=2).w, continued(newer).w)
    keys = [checkpoint.load(path)[1]["privacy"]["key"] for path in (older, newer)]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("damage", [lambda text: text[:10] + "0" + text[11:] if text[10] != "0" else "1" + text[1:],
                                    lambda text: "\n" + text, lambda text: text.replace("\n", " \n")])  # fmt: skip
def test_a_damaged_log_is_named(tmp_path: Path, damage) -> None:
    path = saved(tmp_path)
    log = logs_in(tmp_path)[0]
    log.write_text(damage(log.read_text()))
    with pytest.raises(InputError, match=r"released-.*\.log is damaged in line 1"):
        continued(path)


def test_a_log_that_lacks_what_a_state_knows_of_is_refused_and_torn_lines_are_replaced(tmp_path: Path) -> None:
    path = saved(tmp_path)
    log = logs_in(tmp_path)[0]
    whole = log.read_text()
    log.write_text(whole[:-1])
    with pytest.raises(InputError, match=r"has 0 of 1 releases before state.safetensors"):
        continued(path)
    log.write_text(whole + whole[:20])
    continued(path)
    assert len(read_log(log)) == 2


def test_only_the_owner_can_read_keys_and_log(tmp_path: Path) -> None:
    path = saved(tmp_path)
    assert [one.stat().st_mode & 0o777 for one in (path, *logs_in(tmp_path))] == [PRIVATE, PRIVATE]


@pytest.mark.parametrize("change", [{"key": "00"}, {"key": None}, {"run": "../../elsewhere"}, {"releases": "many"}])
def test_a_state_without_a_key_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    path = saved(tmp_path)
    tensors, meta = checkpoint.load(path)
    checkpoint.save(path, tensors, meta | {"privacy": meta["privacy"] | change})
    with pytest.raises(DamagedError, match="has no key of its private rounds"):
        continued(path)


def test_a_log_is_written_once_whoever_writes(tmp_path: Path) -> None:
    path = tmp_path / "released-0.log"
    one, two = frozenset({(0, "0" * 32)}), frozenset({(0, "1" * 32)})
    add_to_log(path, one)
    assert add_to_log(path, two) == add_to_log(path, one) == read_log(path) == one | two


def test_seeded_noise_keeps_neither_key_nor_log(tmp_path: Path) -> None:
    path = saved(tmp_path, privacy=ff.Privacy(**vars(PRIVACY) | {"noise": "seeded-not-private"}))
    assert set(checkpoint.load(path)[1]["privacy"]).isdisjoint({"key", "run", "releases"})
    assert logs_in(tmp_path) == []

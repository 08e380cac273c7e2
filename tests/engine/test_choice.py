"""How `executor = "auto"` chooses, by a clock that the tests set."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

from fedflat.core.errors import InputError
from fedflat.engine import choice
from fedflat.engine.choice import CLEARLY, WORTHWHILE, choose
from fedflat.engine.stacked import Stacked
from fedflat.methods import find
from support.federation import simulation

COHORT = np.arange(6)
LONG = 1e9  # local steps of a whole run


@pytest.fixture(autouse=True)
def choice_by_rule() -> None:
    """Here trials have their clock."""


class TimedTrial:
    """In the place of a trial: takes the next of the times of its executor, and the last one again and again."""

    times: dict[str, list[float]]

    def __init__(self, executor, cohort, steps: int = 2) -> None:
        self.steps, self.round_steps = steps, 100
        self._times = iter([each * steps for each in self.times[executor.name]])

    def run(self) -> None: ...

    def seconds(self) -> float:
        self._last = next(self._times, getattr(self, "_last", None))
        return self._last


@pytest.fixture
def choice_for(monkeypatch: pytest.MonkeyPatch):
    """The choice for a model, a number of steps, and the times of a step with each executor."""

    def of(module: nn.Module, steps: float, **times: float | list[float]):
        TimedTrial.times = {name: each if isinstance(each, list) else [each] for name, each in times.items()}
        monkeypatch.setattr(choice, "Trial", TimedTrial)
        return choose("auto", simulation(find("FedAvg")(), model=module)._make, COHORT, steps)

    return of


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("module", "sequential", "stacked", "name"),
    [
        (dense, 1.0, 0.97 * CLEARLY, "stacked"),  # by rule, and not clearly slower
        (dense, 1.0, 1.03 * CLEARLY, "sequential"),
        (convolutional, 0.97 * CLEARLY, 1.0, "sequential"),
        (convolutional, 1.03 * CLEARLY, 1.0, "stacked"),
        (dense, 0.0, 1.0, "stacked"),  # by a clock that does not tell such short times
    ],
)
def test_a_trial_overrules_the_rule_only_clearly(
    choice_for, module, sequential: float, stacked: float, name: str
) -> None:
    assert choice_for(module(), 1.0, sequential=sequential, stacked=stacked).name == name


@pytest.mark.parametrize(
    ("compiled", "name"),
    [(0.97 / WORTHWHILE, "compiled"), (1.03 / WORTHWHILE, "stacked"), (2.0, "stacked"), (0.0, "stacked")],
)
def test_a_long_run_is_compiled_where_that_is_worthwhile(choice_for, compiled: float, name: str) -> None:
    assert choice_for(dense(), LONG, sequential=3.0, stacked=1.0, compiled=compiled).name == name


@pytest.mark.parametrize(("stacked", "name"), [(0.97 / CLEARLY, "stacked"), (1.03 / CLEARLY, "sequential")])
def test_a_model_larger_than_a_cache_is_trained_one_client_at_a_time(
    choice_for, monkeypatch: pytest.MonkeyPatch, stacked: float, name: str
) -> None:
    module = dense()
    monkeypatch.setattr(choice, "LARGE", 4 * sum(p.numel() for p in module.parameters()) - 1)
    assert choice_for(module, 1.0, sequential=1.0, stacked=stacked).name == name
    monkeypatch.setattr(choice, "LARGE", choice.LARGE + 1)
    assert choice_for(module, 1.0, sequential=1.0, stacked=stacked).name == "stacked"


def test_a_large_dense_model_is_compiled_in_a_long_run_and_convolutions_are_not(
    choice_for, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "LARGE", 1)
    assert choice_for(dense(), LONG, sequential=1.0, stacked=1.0, compiled=0.5).name == "compiled"
    assert choice_for(dense(), LONG, sequential=1.0, stacked=1.0, compiled=0.95).name == "sequential"
    found = choice_for(convolutional(), LONG, sequential=1.0, stacked=1.0, compiled=0.5)
    assert found.name == "sequential"
    assert "compiled" not in found.seconds


def test_a_short_run_is_not_compiled(choice_for) -> None:
    found = choice_for(dense(), choice.COMPILING - 1, sequential=3.0, stacked=1.0, compiled=0.001)
    assert found.name == "stacked"
    assert "compiled" not in found.seconds


def test_a_trial_that_was_disturbed_does_not_count(choice_for) -> None:
    """The shortest time of several is what the executor can do."""
    found = choice_for(dense(), LONG, sequential=9e-3, stacked=4e-3, compiled=[9e-3, 8e-3, 2e-3, 7e-3])
    assert found.name == "compiled"
    assert found.seconds["compiled"] == pytest.approx(2e-3)


@pytest.mark.parametrize("steps", [1, 7, 100])
def test_the_cost_of_a_round_is_shared_by_all_its_steps(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial takes 3 ms for the round and 0.2 ms for a step of each of its clients."""

    class Trial(TimedTrial):
        def __init__(self, executor, cohort, few: int) -> None:
            self.steps, self.round_steps = 4 * min(few, steps), 4 * steps

        def seconds(self) -> float:
            return 3e-3 + 0.2e-3 * self.steps

    monkeypatch.setattr(choice, "Trial", Trial)
    sim = simulation(find("FedAvg")())
    found = choice._step_times([sim._make(Stacked)], COHORT)
    assert found == {"stacked": pytest.approx((3e-3 + 0.2e-3 * 4 * steps) / (4 * steps))}


def test_real_trials_take_processor_time() -> None:
    sim = simulation(find("FedSAM")())
    assert sim.choice.name in ("sequential", "stacked")
    assert sim.choice.seconds.keys() == {"sequential", "stacked"}
    assert max(sim.choice.seconds.values()) > 0


class NoStack(nn.Linear):
    """What `vmap` does not know is raised as any error there is."""

    def forward(self, x):
        if not isinstance(x.shape[0], int) or torch._C._functorch.is_batchedtensor(x):
            raise KeyError("in a stack")
        return super().forward(x)


def test_whatever_a_stack_raises_is_a_reason_to_train_one_after_another(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        sim = simulation(find("FedAvg")(), model=NoStack(6, 3).double(), rounds=1)
        sim.run()
    assert sim.choice.name == "sequential"
    assert sim.choice.reason == "stacked fails: KeyError: 'in a stack'"
    assert [record.message for record in caplog.records].count(
        "executor stacked fails, so one client is trained after another: KeyError: 'in a stack'"
    ) == 1
    with pytest.raises(InputError, match="model: torch cannot run it for several clients at once"):
        simulation(find("FedAvg")(), model=NoStack(6, 3).double(), executor="stacked").prepare()


def test_a_batch_that_scores_depend_on_is_not_filled_up() -> None:
    """Clients of 1 to 12 samples: stacks would fill up the batches of the smaller ones."""

    class Centred(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return out - 0.5 * out.mean(0)

    sim = simulation(find("FedAvg")(), model=Centred(6, 3).double())
    assert sim.choice.name == "sequential"
    with pytest.raises(InputError, match="fills up short batches"):
        simulation(find("FedAvg")(), model=Centred(6, 3).double(), executor="stacked")

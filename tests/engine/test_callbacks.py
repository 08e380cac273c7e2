"""Callbacks: called when they should be, early stopping from the history alone, and the best model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.engine.callbacks import History, goodness
from fedflat.methods import FedAvg
from support.federation import federation, simulation


class Recorder(ff.Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def round_ended(self, sim: ff.Simulation, round: ff.engine.simulation.Round) -> None:
        self.told.append((sim.t, round.t, len(sim.history), round.metrics["drift"] > 0))

    def run_ended(self, run: ff.Run) -> None:
        self.told.append(run.summary["rounds"])


def history(values: list[float | None], metric: str = "validation_accuracy") -> History:
    return [{"t": t} if value is None else {"t": t, metric: value} for t, value in enumerate(values)]


def test_a_callback_is_told_of_every_round_and_of_the_end() -> None:
    callback = Recorder()
    simulation(FedAvg(), rounds=3, callbacks=[callback]).run()
    assert callback.told == [(1, 0, 1, True), (2, 1, 2, True), (3, 2, 3, True), 3]


def test_callbacks_change_no_bit() -> None:
    runs = [
        simulation(FedAvg(), callbacks=callbacks).run()
        for callbacks in ([], [Recorder(), ff.BestModel(None, "test_loss")])
    ]
    assert torch.equal(runs[0].w, runs[1].w)


def test_an_error_of_a_callback_leaves_the_round_complete() -> None:
    class Failing(ff.Callback):
        def round_ended(self, sim: ff.Simulation, round: ff.engine.simulation.Round) -> None:
            if round.t == 1:
                raise ZeroDivisionError

    sim = simulation(FedAvg(), callbacks=[Failing()])
    with pytest.raises(ZeroDivisionError):
        sim.run()
    assert (sim.t, len(sim.history)) == (2, 2)


@pytest.mark.parametrize(
    ("values", "patience", "min_delta", "stops_after"),
    [
        ([0.1, 0.2, 0.3, 0.4, 0.5], 1, 0.0, None),
        ([0.5, 0.5], 1, 0.0, 2),
        ([0.5, 0.4, 0.6, 0.5, 0.6], 2, 0.0, 5),
        ([0.5, 0.4, 0.6, 0.5, 0.61], 2, 0.0, None),
        ([0.5, 0.55, 0.59], 2, 0.1, 3),
        ([0.5, 0.55, 0.61], 2, 0.1, None),
        ([None, 0.5, None, None, 0.4, None, 0.3], 2, 0.0, 7),
        ([float("nan"), float("nan")], 2, 0.0, 2),
        ([], 1, 0.0, None),
    ],
)
def test_patience_is_counted_in_evaluations_without_improvement(
    values: list[float | None], patience: int, min_delta: float, stops_after: int | None
) -> None:
    callback = ff.EarlyStopping(patience=patience, min_delta=min_delta)
    wants = [callback.should_stop(history(values[:n])) for n in range(len(values) + 1)]
    assert (wants.index(True) if True in wants else None) == stops_after


def test_a_loss_is_better_when_it_falls() -> None:
    falling = history([3.0, 2.0, 1.0], "test_loss")
    assert not ff.EarlyStopping("test_loss", patience=1).should_stop(falling)
    assert ff.EarlyStopping("test_loss", patience=1).should_stop(falling[::-1])


def stopping(**changes) -> ff.Simulation:
    """Ends early: test accuracy rises for some of its rounds."""
    callbacks = [ff.EarlyStopping("test_accuracy", patience=2, min_delta=0.01)]
    return simulation(FedAvg(), rounds=40, callbacks=callbacks, **changes)


@pytest.mark.slow
def test_a_resumed_run_stops_at_the_same_round(tmp_path: Path) -> None:
    """From every round on, the last one included, and without the callback once it has decided."""
    whole, path = stopping(), tmp_path / "state.safetensors"
    whole.run()
    assert 2 < whole.t < 40
    for t in range(1, whole.t + 1):
        first, second = stopping(), stopping()
        for _ in range(t):
            first.round()
        assert first.is_over() == (t == whole.t)
        first.save(path)
        second.load(path)
        assert [row.t for row in second] == list(range(t, whole.t))
        assert torch.equal(second.w, whole.w)
    plain = simulation(FedAvg(), rounds=40)
    plain.load(path)
    assert plain.is_over(), "the checkpoint says so"
    longer = simulation(FedAvg(), rounds=41)
    longer.load(path)
    assert not longer.is_over(), "unless it is to have more rounds"


@pytest.mark.parametrize("metric", ["test_accuracy", "test_loss", "train_loss"])
def test_the_best_model_is_that_of_the_best_round(metric: str, tmp_path: Path) -> None:
    best = ff.BestModel(tmp_path / "new" / "best.safetensors", metric)
    sim = simulation(FedAvg(), client={"lr": 2.0}, callbacks=[best])
    models = [{name: p.detach().clone() for name, p in sim.model.named_parameters()} for _ in sim]
    values = [row[metric] for row in sim.history]
    expected = values.index(min(values) if metric.endswith("loss") else max(values))
    assert best.t == expected
    with safe_open(best.path, "pt") as file:
        assert json.loads(file.metadata()["fedflat"]) == {"t": expected, "metric": metric}
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dictionary)
    for parameters in (found, best.parameters):
        assert parameters.keys() == models[expected].keys()
        assert all(torch.equal(x, models[expected][name]) for name, x in parameters.items())


@pytest.mark.parametrize("metric", ["test_rmse", "test_mae", "test_r2"])
def test_errors_of_a_regression_are_minimised(metric: str) -> None:
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).view(-1, 1)
    data = ff.FederatedData.from_clients([(x, 2 * x)] * 3, test=(x, 2 * x), task="regression")
    best, client = ff.BestModel(metric=metric), ff.Client(lr=0.3, lr_decay=1.5, batch_size=None, epochs=1)
    sim = ff.Simulation(torch.nn.Linear(1, 1).double(), data, FedAvg(), client, rounds=8, callbacks=[best])
    values = [round.metrics[metric] for round in sim]
    expected = max(values) if metric == "test_r2" else min(values)
    assert best.t == values.index(expected)
    assert 0 < best.t < 7, "first it learns, then it diverges"


def test_the_iterate_has_the_direction_of_the_model() -> None:
    rows = [{"test_loss_iterate": 2.0, "test_accuracy_iterate": 0.3}]
    assert goodness(rows, "test_loss_iterate") == [-2.0]
    assert goodness(rows, "test_accuracy_iterate") == [0.3]


@pytest.mark.parametrize("metric", ["drift", "lr", "lambda_max", "seconds", 5, None])
def test_a_metric_without_a_better_direction_is_refused(metric: object) -> None:
    for make in (ff.EarlyStopping, ff.BestModel):
        with pytest.raises(InputError, match=rf"{make.__name__}\.metric = {metric!r} is neither better when higher"):
            make(metric=metric)


def test_a_resumed_run_keeps_the_best_model_of_before(tmp_path: Path) -> None:
    """Killed after any round and resumed from the one before, the file at the end is the same."""
    settings = {"client": {"lr": 2.0}}
    whole = ff.BestModel(tmp_path / "whole", "test_loss")
    simulation(FedAvg(), callbacks=[whole], **settings).run()
    for t in range(1, 7):
        path = tmp_path / f"best-{t}"
        killed = simulation(FedAvg(), callbacks=[ff.BestModel(path, "test_loss")], **settings)
        for result in killed:
            if result.t + 1 == t:
                killed.save(tmp_path / "state.safetensors")
            if result.t == t:
                break
        resumed = simulation(FedAvg(), callbacks=[ff.BestModel(path, "test_loss")], **settings)
        resumed.load(tmp_path / "state.safetensors")
        resumed.run()
        assert path.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("callback", [ff.EarlyStopping(), ff.BestModel()], ids=["early", "best"])
def test_a_metric_that_no_round_has_is_named_after_the_first_evaluation(callback: ff.Callback) -> None:
    sim = simulation(FedAvg(), eval_every=2, callbacks=[callback])
    message = (
        "no round has metric = 'validation_accuracy'; data with validation samples have it; there are bytes_down, "
    )
    with pytest.raises(ff.core.errors.InputError, match=message):
        sim.run()
    assert sim.t == 2


def own(**methods: object) -> ff.Simulation:
    """A simulation with a callback of the user's own."""
    return simulation(FedAvg(), rounds=3, callbacks=[type("Mine", (ff.Callback,), methods)()])


@pytest.mark.parametrize(
    "methods",
    [
        {"round_ended": lambda self, sim, round, more=None: None, "round_end": lambda self, sim: None},
        {"round_ended": staticmethod(lambda sim, round: None), "should_stop": lambda self, *arguments: np.bool_(False)},
        {"should_stop": lambda self, history: None, "round_end": 3, "save": lambda self: None},
    ],
    ids=["a helper beside the hook", "static", "no method"],
)
def test_a_callback_may_have_other_methods_and_attributes(methods: dict[str, object]) -> None:
    assert own(**methods).run().summary["rounds"] == 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ff.EarlyStopping(patience=0), "EarlyStopping.patience must be a whole number of at least 1, got 0"),
        (
            lambda: ff.EarlyStopping(patience=1.5),
            "EarlyStopping.patience must be a whole number of at least 1, got 1.5",
        ),
        (lambda: ff.EarlyStopping(min_delta=-1), "EarlyStopping.min_delta must be a number of at least 0, got -1"),
        (lambda: simulation(FedAvg(), callbacks=[print]), "callbacks must be objects of classes over fedflat.Callback"),
        (
            lambda: simulation(FedAvg(), callbacks=ff.EarlyStopping()),
            r"must be a list, .*, got EarlyStopping\(",
        ),
        (
            lambda: own(round_ended=lambda self, sim: None),
            r"callbacks: Mine.round_ended\(self, sim\) is called with \(self, sim, round\)",
        ),
        (
            lambda: own(round_end=lambda self, sim, round: None),
            r"Mine.round_end would never be called; did you mean round_ended\?",
        ),
        (lambda: own(on_run_end=lambda self, run: None), r"Mine.on_run_end would .* mean run_ended\?"),
        (lambda: own(should_stopp=lambda self, run: None), r"Mine.should_stopp would .* mean should_stop\?"),
        (
            lambda: own(should_stop=lambda self, history: "maybe").run(),
            "Mine.should_stop must return True or False, it returned 'maybe'",
        ),
    ],
)
def test_mistakes_name_the_argument(make, message: str) -> None:
    with pytest.raises(ff.core.errors.InputError, match=message):
        make()


@pytest.mark.slow
def test_more_rounds_forget_the_evaluation_that_only_the_last_round_had(tmp_path: Path) -> None:
    """Extended from 4 to 7 rounds, a run reports what a run of 7 rounds does: evaluations after 3, 6 and 7, probes."""
    settings = {"data": federation(), "eval_every": 3, "probes": ["gradient_norm"], "probe_every": 3}
    expected, first, extended = (simulation(FedAvg(), rounds=rounds, **settings) for rounds in (7, 4, 7))
    for sim in (expected, first):
        sim.run()
    assert {"test_accuracy", "gradient_norm"} <= first.history[-1].keys()
    first.save(tmp_path / "state.safetensors")
    extended.load(tmp_path / "state.safetensors")
    extended.run()
    assert [row | {"seconds": 0} for row in extended.history] == [row | {"seconds": 0} for row in expected.history]
    assert torch.equal(extended.w, expected.w)

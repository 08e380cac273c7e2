"""Predictions: those that evaluations count, of samples as they were given for training, by every door to a model."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.data.sample_kind import SampleKind
from fedflat.experiments import runner
from fedflat.experiments.export import export
from fedflat.experiments.run_directory import StoredRun
from fedflat.rounds.checksums import Checksums
from support.studies import run_spec


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))


@pytest.fixture(scope="module")
def sim() -> ff.Simulation:
    sim = ff.Simulation(
        with_dropout(),
        ff.data.load("digits", 4),
        ff.methods.FedAvg(),
        ff.Client(lr=0.5, epochs=2, batch_size=20),
        rounds=2,
    )
    sim.run()
    return sim


def test_every_model_that_is_handed_out_is_in_evaluation_mode(sim: ff.Simulation, tmp_path: Path) -> None:
    run, x = sim.result(), sim.data.test[0]
    run.save(tmp_path / "saved")
    doors = [sim.model, run.model, ff.load_run(tmp_path / "saved").load_into(with_dropout().train())]
    for model in doors:
        assert torch.equal(model(x), model(x))
        torch.testing.assert_close(model(x).detach(), run.predict(x))


@pytest.mark.slow
def test_so_are_those_of_folders_and_exports(tmp_path: Path) -> None:
    """An adapter has dropout, too."""
    spec = run_spec(rounds=1, flatness=[], model={"name": "mlp"}, adapter={"targets": ["1"], "r": 2, "dropout": 0.5})
    runner.run(spec, tmp_path / "run")
    run = StoredRun.open(tmp_path / "run")
    export(run, tmp_path / "out")
    exported = runpy.run_path(str(tmp_path / "out" / "load.py"))["model"]
    x = ff.data.load("digits", 3).test[0]
    for model in (run.model, exported):
        assert torch.equal(model(x), model(x))
        torch.testing.assert_close(model(x).detach(), run.predict(x), rtol=1e-5, atol=1e-6)


def test_predicted_classes_are_right_as_often_as_the_evaluation_says(sim: ff.Simulation) -> None:
    x, y = sim.data.test
    accuracy = sim.result().summary["test_accuracy_last"]
    for door in (sim, sim.result()):
        assert float((door.predict(x.numpy(), classes=True) == y).double().mean()) == accuracy > 0.3
        assert torch.equal(door.predict(x).argmax(-1), door.predict(x, classes=True))


def test_a_model_that_was_put_into_training_mode_predicts_all_the_same(sim: ff.Simulation) -> None:
    run, x = sim.result(), sim.data.test[0]
    expected = run.predict(x)
    run.model.train()
    assert torch.equal(run.predict(x), expected)
    assert run.model[2].training, "it is left as it was"


def test_a_batch_more_changes_nothing(sim: ff.Simulation) -> None:
    x = sim.data.x
    parts = torch.cat([sim.predict(x[:1000]), sim.predict(x[1000:])])
    torch.testing.assert_close(sim.predict(x), parts, rtol=1e-5, atol=1e-6)
    assert not sim.predict(x).requires_grad
    assert sim.predict(x[:0]).shape == (0, 10)


@pytest.mark.parametrize(
    "given",
    [
        lambda x: x.double().numpy(),
        list,
        lambda x: x.tolist(),
        lambda x: torch.utils.data.TensorDataset(x, torch.zeros(len(x))),
        torch.utils.data.TensorDataset,
        lambda x: [(one, 0) for one in x],
    ],
)
def test_samples_come_in_any_of_the_forms_of_training(sim: ff.Simulation, given: Callable[[Tensor], Any]) -> None:
    x = sim.data.x[:5]
    assert torch.equal(sim.predict(given(x)), sim.predict(x))


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (lambda x: x[0], r"x has shape \(1, 8, 8\), .* expected \(n, 1, 8, 8\); one sample is x\[None\]$"),
        (lambda x: x.flatten(1), r"x has shape \(5, 64\), and samples of training have \(1, 8, 8\): "),
        (lambda x: (255 * x).byte(), r"x has pixels \(uint8\), .*, and samples of training are floats; give these$"),
        (lambda x: x.long(), r"x has tokens \(whole numbers\), and samples of training are floats; give these$"),
        (lambda x: x * torch.inf, r"x has a value that is NaN, infinite or too large for torch.float32$"),
        (lambda x: x.double() * 1e300 + 1e300, r"x has a value that is NaN, infinite or too large for torch.float32$"),
        (lambda x: x.cfloat(), r"x has complex numbers"),
        (lambda x: np.array(["a"]), r"x has texts"),
        (lambda x: ["a text"], r"x has texts, and samples of training are floats of shape \(1, 8, 8\); give these$"),
        (lambda x: "pictures", r"x is of type str; give an array or a list of samples$"),
        (lambda x: None, r"x has None of type NoneType in sample 0, expected numbers$"),
    ],
)
def test_other_samples_are_one_line(sim: ff.Simulation, given: Callable[[Tensor], Any], line: str) -> None:
    with pytest.raises(InputError, match=f"^predict: {line}") as caught:
        sim.predict(given(sim.data.x[:5]))
    assert "\n" not in str(caught.value)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.f = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.e(x).mean(1))


def test_pixels_and_tokens_are_prepared_as_in_training(tmp_path: Path) -> None:
    """Pixels become numbers in [0, 1]; a float model of the same pixels, divided by 255, has the same scores."""
    g = np.random.default_rng(0)
    pixels, tokens, y = g.integers(0, 256, (12, 1, 4, 4), np.uint8), g.integers(0, 9, (12, 3)), np.arange(12) % 2
    runs = {}
    for name, x, model in (("pixels", pixels, "mlp"), ("floats", np.float32(pixels) / 255, "mlp"),
                           ("tokens", tokens, Tokens())):  # fmt: skip
        data = ff.FederatedData.from_clients([(x[:6], y[:6]), (x[6:], y[6:])])
        runs[name] = ff.Simulation(model, data, ff.methods.FedAvg(), rounds=1).run()
    torch.testing.assert_close(runs["pixels"].predict(pixels), runs["floats"].predict(np.float32(pixels) / 255))
    expected = runs["tokens"].model(torch.from_numpy(tokens)).detach()
    assert torch.equal(runs["tokens"].predict(tokens.astype(np.int32)), expected)
    with pytest.raises(InputError, match=r"^predict: the model cannot take these samples: index out of range"):
        runs["tokens"].predict(tokens + 9)
    with pytest.raises(InputError, match=r"^predict: x has floats, and samples of training are pixels \(uint8\)"):
        runs["pixels"].predict(np.float32(pixels) / 255)
    runs["pixels"].save(tmp_path / "saved")
    assert torch.equal(ff.load_run(tmp_path / "saved").predict(pixels), runs["pixels"].predict(pixels))


def test_texts_become_the_token_numbers_of_a_tokenizer() -> None:
    """Whose arrays cannot be written, of which torch would warn."""
    kind, numbers = SampleKind((3,), "tokens", "classification", 2), np.arange(6, dtype=np.int32).reshape(2, 3)
    numbers.flags.writeable = False
    assert torch.equal(kind.stored(["a b", "c"], lambda texts: numbers), torch.from_numpy(numbers.copy()))


@pytest.mark.parametrize("task", ["regression", "multi-label"])
def test_other_tasks_predict_numbers_or_labels(task: str) -> None:
    g = np.random.default_rng(0)
    x = g.normal(size=(12, 4))
    y = g.integers(0, 2, (12, 3)).astype(float) if task == "multi-label" else g.normal(size=(12, 3))
    data = ff.FederatedData.from_clients([(x, y)], test=(x, y), task=task)
    run = ff.Simulation("mlp", data, ff.methods.FedAvg(), rounds=1).run()
    if task == "regression":
        error = float((run.predict(x) - torch.from_numpy(y)).double().square().mean().sqrt())
        assert error == pytest.approx(run.summary["test_rmse_last"], rel=1e-5)
        with pytest.raises(InputError, match=r"^predict: a regression has no classes"):
            run.predict(x, classes=True)
    else:
        right = float((run.predict(x, classes=True).numpy() == y).mean())
        assert right == pytest.approx(run.summary["test_label_accuracy_last"], rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [0]},
        {"shape": [10**5, 10**5]},
        {"outputs": -1},
        {"outputs": 10**12},
        {"class_names": ["a"]},
        {"class_names": ["a"] * 10},
        {"class_names": [f"{i}\x1b[2J" for i in range(10)]},
        {"mean": [0.5]},
        {"numbers": "texts"},
        {"task": "magic"},
        {"shape": "abc"},
    ],
)
def test_a_damaged_description_of_samples_is_one_line(
    sim: ff.Simulation, tmp_path: Path, change: dict[str, Any]
) -> None:
    sim.result().save(tmp_path)
    content = json.loads((tmp_path / "summary.json").read_text())
    content["samples"] |= change
    Checksums(tmp_path).write("summary.json", lambda path: path.write_text(json.dumps(content)))
    run = ff.load_run(tmp_path)
    with pytest.raises(InputError, match=r"summary.json is damaged: samples") as caught:
        run.predict(sim.data.x)
    assert str(caught.value).isprintable()

"""Tasks other than classification, and losses of the user's own."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.objective import Batch, Objective
from fedflat.core.task import CROSS_ENTROPY, LOSSES, task_of
from fedflat.metrics.accuracy import multi_label_numbers, regression_numbers, score

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
CLIENT = ff.Client(lr=0.1, epochs=2, batch_size=10)


def squared(scores: Tensor, y: Tensor) -> Tensor:
    return (scores - y).square().mean(-1)


def again(scores: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(scores, y, reduction="none")


def test_losses_are_their_formulas() -> None:
    scores, numbers = torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    assert LOSSES["regression"].each(scores, numbers).tolist() == [(1 + 4) / 2]
    expected = (log(1 + np.exp(-2)) + log(1 + np.exp(1))) / 2  # -log of the sigmoid of each score
    assert LOSSES["multi-label"].each(scores, numbers).item() == pytest.approx(expected, rel=1e-6)
    expected = log(np.exp(2) + np.exp(-1)) + 1
    assert CROSS_ENTROPY.each(scores, torch.tensor([1])).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("clients", [(), (3,)])
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients_are_those_of_torch(clients: tuple[int, ...], weighted: bool) -> None:
    torch.manual_seed(0)
    module = nn.Linear(4, 2).double()
    objective = Objective(module, task=LOSSES["regression"])
    w = torch.randn(*clients, 10, dtype=torch.float64)
    x, y = torch.randn(*clients, 5, 4, dtype=torch.float64), torch.randn(*clients, 5, 2, dtype=torch.float64)
    weight = torch.rand(*clients, 5, dtype=torch.float64) if weighted else None
    found = objective.gradient(w, Batch(x, y, weight)).reshape(-1, 10)
    for i, mine in enumerate(found):
        A, b = w.reshape(-1, 10)[i].split([8, 2])
        x_i, y_i = x.reshape(-1, 5, 4)[i], y.reshape(-1, 5, 2)[i]
        error = x_i @ A.view(2, 4).T + b - y_i  # the derivative of the mean square is the error: 2 numbers, times 2
        share = torch.full((5, 1), 0.2, dtype=torch.float64) if weight is None else weight.reshape(-1, 5)[i][:, None]
        expected = torch.cat([((share * error).T @ x_i).flatten(), (share * error).sum(0)])
        assert torch.allclose(mine, expected)


@pytest.mark.slow
def test_full_batch_descent_is_least_squares() -> None:
    """One linear model, one client: many small steps end at the normal equations' solution."""
    y = X @ np.array([[1.0], [2.0], [-1.0], [0.5]]) + 3 + 0.1 * RNG.normal(size=(60, 1))
    data = ff.FederatedData.from_clients([(X, y)], test=(X, y), task="regression")
    sim = ff.Simulation(
        nn.Linear(4, 1).double(), data, ff.methods.FedAvg(), client=ff.Client(lr=0.3, steps=50), rounds=10, workers=1
    )
    run = sim.run()
    design = np.column_stack([X, np.ones(60)])
    solution, residual, *_ = np.linalg.lstsq(design, y, rcond=None)
    assert np.allclose(run.w.numpy(), solution[:, 0], atol=1e-8)
    assert run.summary["train_loss"] == pytest.approx(residual[0] / 60)
    assert run.summary["test_r2_last"] == pytest.approx(1 - residual[0] / ((y - y.mean()) ** 2).sum())


@pytest.mark.parametrize("k", [1, 3])
def test_numbers_of_a_regression_are_those_of_scikit_learn(k: int) -> None:
    y, predicted = RNG.normal(size=(50, k)), RNG.normal(size=(50, k))
    found = regression_numbers(torch.from_numpy(predicted), torch.from_numpy(y))
    assert found["rmse"] == pytest.approx(sk.mean_squared_error(y, predicted) ** 0.5)
    assert found["mse"] == pytest.approx(sk.mean_squared_error(y, predicted))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(y, predicted))
    assert found["r2"] == pytest.approx(sk.r2_score(y, predicted))


def test_numbers_that_never_vary_have_no_r2() -> None:
    assert "r2" not in regression_numbers(torch.zeros(5, 1), torch.ones(5, 1))


def test_numbers_of_several_labels_are_those_of_scikit_learn() -> None:
    y, predicted = RNG.random((50, 4)) < 0.4, RNG.random((50, 4)) < 0.5
    y[:, 3] = predicted[:, 3] = False  # a label that never occurs
    found = multi_label_numbers(torch.from_numpy(predicted), torch.from_numpy(y))
    assert found["macro_f1"] == pytest.approx(sk.f1_score(y, predicted, average="macro", zero_division=0))
    assert found["label_accuracy"] == pytest.approx(1 - sk.hamming_loss(y, predicted))
    objective = Objective(nn.Linear(4, 4, bias=False), task=LOSSES["multi-label"])
    w = torch.eye(4).flatten()
    scores = torch.from_numpy(np.where(predicted, 1.0, -1.0)).float()
    all_right = score(objective, w, scores, torch.from_numpy(y).float()).accuracy
    assert all_right == pytest.approx(sk.accuracy_score(y, predicted))


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_a_loss_of_ones_own_is_the_named_one_if_it_is_the_same_formula(kind: str, executor: str) -> None:
    y = np.arange(60) % 3 if kind == "classification" else X[:, :2] * 2
    data = ff.FederatedData.split(X, y, clients=4, test=0.2, task=kind)
    own = again if kind == "classification" else squared
    one, other = (
        ff.Simulation(
            "mlp", data, ff.methods.FedSAM(), client=CLIENT, rounds=2, loss=loss, executor=executor, workers=1
        ).run()
        for loss in (None, own)
    )
    assert torch.equal(one.w, other.w)
    assert one.settings["loss"] == ("regression" if kind == "regression" else "cross-entropy")
    assert other.settings["loss"].startswith(f"{own.__name__} #")
    assert one.summary.keys() == other.summary.keys()


@pytest.mark.slow
def test_multi_label_models_learn_every_label() -> None:
    x = RNG.normal(size=(300, 4))
    y = (x[:, :3] + x[:, 1:] > 0).astype(int)
    data = ff.FederatedData.split(x, y, clients=5, test=0.2, validation=0.1, task="multi-label")
    assert data.counts().sum(0).tolist() == data.y[torch.from_numpy(data.held(slice(None)))].sum(0).tolist()
    client = ff.Client(lr=0.5, epochs=4, batch_size=10)
    run = ff.Simulation("mlp", data, ff.methods.FedSAM(), client=client, rounds=10, workers=1).run(["client-accuracy"])
    assert run.summary["test_label_accuracy_last"] > 0.85  # always saying the commoner one is right half of the time
    assert run.summary["test_macro_f1_last"] > 0.85
    assert run.flatness["client_accuracy_mean"].value == pytest.approx(run.summary["client_accuracy_mean"])


@pytest.mark.slow
def test_flatness_of_a_linear_regression_is_its_closed_form() -> None:
    y = RNG.normal(size=(60, 1))
    data = ff.FederatedData.split(X, y, clients=3, task="regression")
    module = nn.Linear(4, 1).double()
    found = ff.flatness(module, data, ["eigenvalues"])["lambda_max"].value
    design = np.column_stack([X, np.ones(60)])
    assert found == pytest.approx(np.linalg.eigvalsh(2 * design.T @ design / 60)[-1], rel=1e-3)


def test_a_checkpoint_remembers_the_loss(tmp_path) -> None:
    data = ff.FederatedData.split(X, np.arange(60) % 3, clients=3)

    def simulation(loss) -> ff.Simulation:
        return ff.Simulation("mlp", data, ff.methods.FedAvg(), rounds=2, loss=loss, executor="sequential", workers=1)

    usual, own = simulation(None), simulation(again)
    usual.round()
    usual.save(tmp_path / "usual")
    assert usual.settings()["loss"] == "cross-entropy"
    own.round()
    own.save(tmp_path / "own")
    simulation("cross-entropy").load(tmp_path / "usual")
    simulation(again).load(tmp_path / "own")
    with pytest.raises(InputError, match=r"loss was cross-entropy, now it is .*again"):
        simulation(again).load(tmp_path / "usual")
    with pytest.raises(InputError, match=r"loss was again #\w+, now it is cross-entropy"):
        simulation(None).load(tmp_path / "own")


NUMBERS = ff.FederatedData.split(X, X[:, :1], clients=3, test=0.2, task="regression")
CLASSES = ff.FederatedData.split(X, np.arange(60) % 3, clients=3, test=0.2)


def run(data: ff.FederatedData, loss=None, method: str = "FedAvg", **options) -> ff.Run:
    made = getattr(ff.methods, method)()
    return ff.Simulation("mlp", data, made, rounds=1, loss=loss, workers=1, **options).run()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: run(CLASSES, "regression"), "loss = 'regression' needs labels for regression, and the data's are"),
        (lambda: run(NUMBERS, "cross-entropy"), "needs labels for classification, .* or use loss = 'regression'"),
        (lambda: run(CLASSES, "mse"), "loss = 'mse' is unknown; known are cross-entropy, multi-label, regression"),
        (lambda: run(CLASSES, 3), "loss = 3 is unknown"),
        (lambda: run(CLASSES, lambda s, y: again(s, y).mean()), r"a tensor of shape \(\) for 2 samples, .*: \(2,\)"),
        (lambda: run(CLASSES, lambda s, y: 1.0), "gives a value of type float"),
        (lambda: run(CLASSES, lambda s, y: s.argmax(-1)), "gives a tensor of shape"),
        (lambda: run(CLASSES, lambda s, y: again(s, y) / again(s, y).sum()), "depends on the other samples"),
        (lambda: run(CLASSES, lambda s, y: s @ s), "fails with RuntimeError: "),
        (lambda: run(CLASSES, lambda s: s), "fails with TypeError: "),
        (lambda: run(NUMBERS, method="FedGMT"), "its teacher compares scores of classes, and the task is regression"),
        (lambda: ff.compare([run(NUMBERS), run(CLASSES)]), "different scores, test R² and test accuracy"),
        (lambda: ff.flatness(nn.Linear(4, 1), NUMBERS, ["client-accuracy"]), "accuracy is not defined in regression"),
        (
            lambda: run(ff.FederatedData.split(X, X[:, 0], clients=3, validation=0.2, task="regression")),
            "validation samples measure accuracy, which regression does not have",
        ),
        (
            lambda: ff.Simulation(nn.Linear(4, 2), NUMBERS, ff.methods.FedAvg()),
            r"gives scores of shape \(2, 2\) for 2 samples of 1 number\(s\)",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_name_stands_for_a_task() -> None:
    assert task_of(None, "classification") is task_of("cross-entropy", "classification") is CROSS_ENTROPY


class Remembering:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, scores: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return cross_entropy(scores, y, reduction="none")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Remembering(), "what it keeps in 'calls' changes from call to call"),
        (
            lambda scores, y: scores[:, 0] * float(torch.rand(())),
            "gives other numbers|depends on",
        ),
        (lambda scores, y: cross_entropy(scores.detach(), y, reduction="none"), "no gradient with respect to"),
        (lambda scores, y: scores[:, 0] * nn.Parameter(torch.ones(())), "has parameters of its own"),
    ],
)
def test_a_loss_is_a_function_of_scores_and_labels(loss, message: str) -> None:
    with pytest.raises(InputError, match=message):
        task_of(loss, "classification").check(3, torch.tensor([0, 1]), torch.float32)

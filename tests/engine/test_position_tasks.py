"""Texts with a next token at each place, and pictures with a class at each pixel, through simulations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.task import IGNORED, LOSSES, Kind, task_of
from fedflat.engine.callbacks import EarlyStopping
from support.positions import CLASSES, SHAPES, federation, network, samples, simulation

KINDS: list[Kind] = ["next-token", "segmentation"]


def trained(sim: ff.Simulation) -> Tensor:
    for _ in sim:
        pass
    return sim.w


def own(scores: Tensor, y: Tensor) -> Tensor:
    """The mean of a sample's losses, by torch's own reduction of one sample after another."""
    last = -1 if scores.ndim == 3 else 1
    return torch.stack([
        cross_entropy(one.movedim(last if last < 0 else 0, -1).flatten(0, -2), labels.flatten(), ignore_index=IGNORED)
        for one, labels in zip(scores, y, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_of_averaging_is_a_loop_of_pytorch(kind: Kind) -> None:
    """One step of all samples at each client, then the plain mean."""
    data, start = federation(kind).to("cpu", torch.float64), network(kind)
    sim = simulation(kind, ff.methods.FedAvg(), rounds=1, participation=1.0, client=ff.Client(lr=0.1, steps=1))
    sim.round()
    ends = []
    for i in range(data.clients):
        module = network(kind)
        own(module(data.client(i)[0]), data.client(i)[1]).mean().backward()
        ends.append(torch.cat([(p - 0.1 * p.grad).detach().flatten() for p in module.parameters()]))
    expected = torch.stack(ends).mean(0)
    found = torch.cat([p.flatten() for p in sim.objective.module_at(sim.w).parameters()])
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(found, torch.cat([p.flatten() for p in start.parameters()]), atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("forked_processes")
def test_no_result_depends_on_the_executor_the_workers_or_who_wrote_the_loss(kind: Kind) -> None:
    one = trained(simulation(kind, executor="sequential"))
    for changes in ({"executor": "stacked"}, {"executor": "sequential", "loss": own}):
        other = trained(simulation(kind, **changes))
        assert (one - other).norm() <= 1e-12 * one.norm(), changes
    assert torch.equal(one, trained(simulation(kind, executor="sequential", workers=2)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_has_the_score_of_its_task(kind: Kind, tmp_path) -> None:
    score, shape = ("perplexity", (6, CLASSES)) if kind == "next-token" else ("mean_iou", (CLASSES, 5, 4))
    data = federation(kind, validation=0.3)
    run = simulation(kind, data=data, rounds=2, callbacks=[EarlyStopping(f"test_{score}", patience=5)]).run(
        ["sharpness", "client-accuracy"]
    )
    assert (run.settings["split"]["most_classes"], run.counts.tolist()) == (0, data.sizes[:, None].tolist())
    run.save(tmp_path / "run")
    loaded = ff.load_run(tmp_path / "run")
    curve = run.metrics[f"test_{score}"].to_pylist()
    assert loaded.summary[f"test_{score}"] == pytest.approx(np.mean(curve))
    assert loaded.summary[f"test_{score}_last"] == curve[-1]
    best = int(np.argmax(run.metrics["validation_accuracy"].to_pylist()))
    assert loaded.summary[f"test_{score}_best_validation"] == curve[best]
    assert f"test {'perplexity' if kind == 'next-token' else 'mean IoU'}" in repr(run)
    x, _ = samples(kind, 3, 5)
    scores = run.predict(x)
    assert scores.shape == (3, *shape)
    assert torch.equal(run.predict(x, classes=True), scores.argmax(-1 if kind == "next-token" else 1))
    assert run.flatness["client_accuracy_mean"].value == pytest.approx(run.summary["client_accuracy_mean"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_eigenvalue_is_that_of_autograds_hessian(kind: Kind) -> None:
    data, module = federation(kind), network(kind)
    found = ff.flatness(module, data, ["eigenvalues"])["lambda_max"].value
    prepared, parameters = data.to("cpu", torch.float64), list(module.parameters())
    gradients = torch.autograd.grad(own(module(prepared.x), prepared.y).mean(), parameters, create_graph=True)
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(one, parameters, retain_graph=True)])
        for gradient in gradients for one in gradient.flatten()
    ]  # fmt: skip
    assert found == pytest.approx(float(torch.linalg.eigvalsh(torch.stack(rows))[-1]), rel=1e-3)


def test_a_segmentation_network_with_batch_statistics_trains_and_keeps_them() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, CLASSES, 1))
    sim = simulation("segmentation", model=module, dtype=torch.float32, buffers="averaged", executor="sequential")
    run = sim.run()
    assert run.summary["test_mean_iou"] > 0
    assert not torch.equal(run.model[1].running_mean, torch.zeros(4))


def given(kind: Kind = "next-token", **changes) -> ff.FederatedData:
    x, y = samples(kind, 4, 0)
    return ff.FederatedData.from_clients([(changes.get("x", x), changes.get("y", y))], classes=CLASSES, task=kind)


def changed(kind: Kind, value: float, *place: object) -> np.ndarray:
    y = samples(kind, 4, 0)[1].astype(type(value))
    y[place] = value
    return y


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: given(y=changed("next-token", 4, 2, 5)), r"label 4 of sample 2 at \[5\] is outside 0\.\.3; -100"),
        (lambda: given("segmentation", y=changed("segmentation", -1, 1, 2, 3)), r"label -1 of sample 1 at \[2, 3\]"),
        (lambda: given(y=changed("next-token", IGNORED, 3)), "sample 3 has no label that counts: all are -100"),
        (lambda: given(y=changed("next-token", 0.5, 3)), "label.* not whole numbers"),
        (lambda: given(y=changed("next-token", float("nan"), 3)), "label of sample 3 is missing"),
        (lambda: given(y=np.zeros((4, 5), int)), r"y must be int64 of shape \(4, 6\), \(n, tokens\), got \(4, 5\)"),
        (lambda: given(y=np.zeros(4, int)), r"y of shape \(4,\); expected \(n, ...\) and \(n, tokens\)"),
        (lambda: given("segmentation", y=np.zeros((4, 5), int)), r"expected \(n, ...\) and \(n, height, width\)"),
        (lambda: ff.FederatedData.split(*samples("next-token", 8, 0), clients=2, task="next-token",
                                        partition=ff.Dirichlet(0.5)),
         "partition = .* splits by class, and the labels are those of next-token"),
        (lambda: ff.FederatedData.split(*samples("next-token", 8, 0), clients=2, task="next-token", labels="names"),
         "labels of next-token are whole numbers from 0, not names"),
        (lambda: simulation("next-token", model=nn.Embedding(4, 3)), r"of 4 tokens, expected \(2, 6, 4\)"),
        (lambda: simulation("segmentation", model=nn.Conv2d(1, 4, 3)), r"expected \(2, 4, 5, 4\)"),
        (lambda: simulation("segmentation", method=ff.methods.FedGMT()).run(), "teacher compares scores of classes"),
        (lambda: simulation("segmentation", metrics=["recall"]), "recall is for classes, and the task is segmentation"),
        (lambda: simulation("next-token", attack=ff.Attack(kind="label-flip", share=0.5)), "label-flip is for classes"),
        (lambda: simulation("next-token", loss="segmentation"), "needs labels for segmentation, and the data's are"),
        (lambda: simulation("next-token", loss=lambda s, y: cross_entropy(s.flatten(0, 1), y.flatten(),
                                                                          reduction="none")),
         r"a tensor of shape \(12,\) for 2 samples"),
        (lambda: ff.data.load("shapes", 4, task="segmentation", augment="crop-flip"), "moves pictures and not"),
        (lambda: ff.data.load("shapes", 4), "shapes' has labels for segmentation, .* set loss = 'segmentation'"),
        (lambda: ff.data.load("digits", 4, task="segmentation"), "'digits' has classes, and segmentation needs other"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(make, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_a_sample_is_the_mean_over_what_counts(kind: Kind) -> None:
    y = torch.from_numpy(samples(kind, 3, 1)[1])
    shape = (3, 6, CLASSES) if kind == "next-token" else (3, CLASSES, 5, 4)
    scores = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(LOSSES[kind].each(scores, y), own(scores, y))
    task_of(own, kind).check(CLASSES, y, torch.float64)


def test_masks_of_pillow_are_labels_of_pixels() -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    pictures, masks = rng.integers(256, size=(4, 6, 6), dtype=np.uint8), rng.integers(3, size=(4, 6, 6), dtype=np.uint8)
    pairs = [(Image.fromarray(x), Image.fromarray(y)) for x, y in zip(pictures, masks, strict=True)]
    data = ff.FederatedData.from_clients([pairs[:2], pairs[2:]], task="segmentation", class_names=("a", "b", "c"))
    assert data.y.tolist() == masks.tolist()
    assert (data.shape, data.classes, data.class_names) == ((1, 6, 6), 3, ("a", "b", "c"))
    with pytest.raises(InputError, match=r"pictures as labels \(masks\); these are for task='segmentation'"):
        ff.FederatedData.from_clients([pairs])


def test_no_score_depends_on_a_later_token() -> None:
    module = network("next-token").eval()
    x = torch.from_numpy(samples("next-token", 2, 0)[0])
    changed = x.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % CLASSES
    one, other = module(x), module(changed)
    assert torch.equal(one[:, :3], other[:, :3])
    assert not torch.allclose(one[:, 3:], other[:, 3:])
    assert SHAPES["next-token"] == (x.shape[1],)

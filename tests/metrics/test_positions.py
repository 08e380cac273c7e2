"""Perplexity, mean IoU and accuracy of positions, against loops over samples and against scikit-learn."""

from __future__ import annotations

from math import exp, inf, log, log2

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from fedflat.core.objective import Objective
from fedflat.core.task import IGNORED, LOSSES, Kind
from fedflat.metrics import accuracy
from fedflat.metrics.accuracy import score
from fedflat.metrics.positions import MeanIoU, Perplexity
from support.positions import CLASSES, federation, network

KINDS: list[Kind] = ["next-token", "segmentation"]


def loop(kind: Kind) -> dict[str, list[float]]:
    """Over all test positions that count: loss, predicted and true class; and of each sample mean loss and share."""
    module, (x, y) = network(kind), federation(kind).test
    found: dict[str, list[float]] = {name: [] for name in ("loss", "predicted", "true", "sample loss", "share")}
    for one, labels in zip(x, y, strict=True):
        scores = module(one[None].double() if kind == "segmentation" else one[None])[0].detach()
        rows = scores.flatten(1).T if kind == "segmentation" else scores
        kept = [(row.numpy(), int(label)) for row, label in zip(rows, labels.flatten(), strict=True) if label >= 0]
        losses = [log(np.exp(row).sum()) - row[label] for row, label in kept]
        found["loss"] += losses
        found["predicted"] += [int(row.argmax()) for row, _ in kept]
        found["true"] += [label for _, label in kept]
        found["sample loss"].append(float(np.mean(losses)))
        found["share"].append(float(np.mean([row.argmax() == label for row, label in kept])))
    return found


@pytest.mark.parametrize("at_once", [2, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_is_a_loop_over_samples(kind: Kind, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "SAMPLES_AT_ONCE", at_once)
    objective, expected = Objective(network(kind), task=LOSSES[kind]), loop(kind)
    x, y = federation(kind).to("cpu", torch.float64).test
    found = score(objective, objective.space.flatten(objective.module), x, y)
    assert found.loss.tolist() == pytest.approx(expected["sample loss"])
    assert found.correct.tolist() == expected["share"]
    assert found.accuracy == pytest.approx(np.mean(expected["share"]))
    assert found.mean_loss == pytest.approx(np.mean(expected["sample loss"]))
    if kind == "next-token":
        assert found.numbers["perplexity"] == pytest.approx(exp(np.mean(expected["loss"])))
    else:
        iou = sk.jaccard_score(expected["true"], expected["predicted"], average="macro")
        assert found.numbers["mean_iou"] == pytest.approx(iou)


def test_the_perplexity_of_equal_scores_is_the_number_of_tokens() -> None:
    """And of chances that are powers of two, two to the mean number of bits."""
    totals = Perplexity()
    totals.add(torch.zeros(2, 3, 7), torch.tensor([[0, 6, IGNORED], [IGNORED, 3, 3]]))
    assert totals.values()["perplexity"] == pytest.approx(7)
    chances, totals = torch.tensor([0.5, 0.25, 0.125, 0.125]), Perplexity()
    for token in (0, 0, 0, 1, 3):
        totals.add(chances.log().expand(1, 1, 4), torch.tensor([[token]]))
    bits = -sum(log2(float(chances[token])) for token in (0, 0, 0, 1, 3)) / 5
    assert totals.values()["perplexity"] == pytest.approx(2**bits)


def test_a_hopeless_model_has_an_infinite_perplexity() -> None:
    totals = Perplexity()
    totals.add(torch.tensor([[[0.0, 2000.0]]]), torch.tensor([[0]]))
    assert totals.values()["perplexity"] == inf


def test_mean_iou_leaves_out_classes_that_nobody_sees() -> None:
    """Class 0: both in 1 pixel of 3; class 1: in 1 of 2; class 2 is predicted only; class 3 only where ignored."""
    predicted, true = torch.tensor([0, 0, 1, 2, 3]), torch.tensor([[[0, 1, 1, 0, IGNORED]]])
    scores = torch.nn.functional.one_hot(predicted, CLASSES).float().T[None, :, None]
    totals = MeanIoU()
    totals.add(scores, true)
    assert totals.values()["mean_iou"] == pytest.approx((1 / 3 + 1 / 2 + 0) / 3)
    found = sk.jaccard_score([0, 1, 1, 0], [0, 0, 1, 2], average="macro")
    assert totals.values()["mean_iou"] == pytest.approx(found)

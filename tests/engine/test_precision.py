"""bfloat16 is for training gradients and nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.objective import Batch, BatchOracle, Objective
from fedflat.methods import find
from support.federation import simulation


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def both(**settings) -> list[ff.Simulation]:
    return [simulation(find("FedSAM")(), model=network(), precision=p, **settings) for p in ("fp32", "bf16")]


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_training_is_near_single_precision_and_not_equal(executor: str) -> None:
    """bfloat16 has 8 bits: relative errors of gradients are some 2^-8, those of the model's changes are alike."""
    exact, rough = both(executor=executor)
    start = exact.w
    for sim in (exact, rough):
        for _ in sim:
            pass
    moved, error = (exact.w - start).norm(), (exact.w - rough.w).norm()
    assert 0 < error <= 2**-4 * moved
    assert rough.w.dtype == torch.float32


def test_measures_and_evaluations_are_in_single_precision() -> None:
    """The same model before any training: same gradient norm, same sharpness, to the bit."""
    measures = ["gradient_norm", "sharpness"]
    exact, rough = ({name: x.value for name, x in sim.flatness(measures).items()} for sim in both())
    assert exact == rough


def test_sequential_and_stacked_agree_as_far_as_eight_bits_go() -> None:
    ends = []
    for executor in ("sequential", "stacked"):
        sim = simulation(find("FedAvg")(), model=network(), precision="bf16", executor=executor)
        start = sim.w
        for _ in sim:
            pass
        ends.append(sim.w - start)
    assert all((one - other).norm() <= 2**-4 * one.norm() for one, other in pairwise(ends))


def test_the_precision_is_told_and_unknown_ones_are_refused() -> None:
    assert [sim.settings()["precision"] for sim in both()] == ["fp32", "bf16"]
    with pytest.raises(ValueError, match="precision = 'fp16' is unknown; known are fp32, bf16"):
        simulation(find("FedAvg")(), precision="fp16")


def test_the_gradient_of_a_teacher_alone_is_in_single_precision() -> None:
    """Near the teacher its penalty is flat, and bfloat16 would leave rounding errors of the gradient's direction."""
    torch.manual_seed(0)
    objective = {bf16: Objective(network(), bf16=bf16) for bf16 in (False, True)}
    w = objective[False].space.flatten(objective[False].module)
    batch = Batch(torch.randn(8, 6), torch.randint(3, (8,)))
    near = w + 1e-3 * torch.randn(len(w))
    exact, same = (BatchOracle(one, batch).teacher_gradient(near, w, 3.0) for one in objective.values())
    assert torch.equal(exact, same)
    plain, rough = (BatchOracle(one, batch)(near) for one in objective.values())
    assert not torch.equal(plain, rough), "the gradient of the task is in bfloat16"

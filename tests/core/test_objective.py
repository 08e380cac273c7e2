from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div

from fedflat.core.errors import StackingError
from fedflat.core.objective import Batch, BatchOracle, Objective
from fedflat.core.oracle import with_teacher
from support.federation import tanh_network


def batch(clients: int, b: int = 5) -> Batch:
    g = torch.Generator().manual_seed(1)
    return Batch(torch.randn(clients, b, 6, generator=g).double(), torch.randint(3, (clients, b), generator=g))


def test_gradient_of_a_stack_is_autograd_on_each_module() -> None:
    network = tanh_network()
    objective = Objective(network)
    samples = batch(3)
    w = torch.stack([objective.space.flatten(tanh_network(seed)) for seed in range(3)])
    got = objective.gradient(w, samples)
    for i in range(3):
        objective.space.write(network, w[i])
        network.zero_grad()
        cross_entropy(network(samples.x[i]), samples.y[i]).backward()
        expected = torch.cat([p.grad.flatten() for p in network.parameters()])
        torch.testing.assert_close(got[i], expected, rtol=0, atol=1e-14)
        alone = objective.gradient(w[i], Batch(samples.x[i], samples.y[i]))
        torch.testing.assert_close(alone, expected, rtol=0, atol=1e-14)


def test_a_teachers_penalty_is_torchs_divergence_times_the_squared_temperature() -> None:
    """Hinton et al., 2015: with tau squared, the gradient keeps its size when tau changes."""
    network, teacher, samples = tanh_network(), tanh_network(1), batch(1)
    objective, x = Objective(network), samples.x[0]
    w, e = (objective.space.flatten(one) for one in (network, teacher))
    oracle = with_teacher(BatchOracle(objective, Batch(x, samples.y[0])), e, weight=0.3, tau=2.0)
    student, taught = network(x), teacher(x).detach()
    divergence = kl_div((student / 2).log_softmax(-1), (taught / 2).softmax(-1), reduction="batchmean")
    (cross_entropy(student, samples.y[0]) + 0.3 * 4 * divergence).backward()
    expected = torch.cat([p.grad.flatten() for p in network.parameters()])
    torch.testing.assert_close(oracle(w), expected, rtol=0, atol=1e-14)


def test_weights_stand_for_missing_samples() -> None:
    objective = Objective(tanh_network())
    full = batch(2)
    w = objective.space.flatten(tanh_network(3)).expand(2, -1)
    weight = torch.tensor([[0.2] * 5, [0.5, 0.5, 0, 0, 0]], dtype=torch.float64)
    got = objective.loss(w, Batch(full.x, full.y, weight))
    short = objective.loss(w[1], Batch(full.x[1, :2], full.y[1, :2]))
    torch.testing.assert_close(got, torch.stack([objective.loss(w, full)[0], short]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(6), nn.InstanceNorm1d(6, track_running_stats=True)])
def test_running_statistics_need_to_be_treated(layer: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"layer 1 is {type(layer).__name__}.*buffers = 'averaged'.*to_group_norm"):
        Objective(nn.Sequential(nn.Linear(6, 6), layer))


def test_evaluating_gives_every_layer_its_own_mode_back() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Dropout(0.5))
    module[2].eval()
    objective = Objective(module)
    with objective.evaluating():
        assert not any(layer.training for layer in module.modules())
    assert [layer.training for layer in module.modules()] == [True, True, True, False]


def test_a_module_in_evaluation_mode_is_trained_in_training_mode() -> None:
    assert Objective(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()).module[1].training


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_stack_that_is_short_of_memory_says_so(error: Exception) -> None:
    """It is no sign of a model that cannot be stacked."""

    class Short(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise error

    objective = Objective(Short(3, 2))
    w = objective.space.flatten(objective.module)
    with pytest.raises(type(error)) as raised:
        objective.logits(torch.stack([w, w]), torch.zeros(2, 4, 3))
    assert not isinstance(raised.value, StackingError)

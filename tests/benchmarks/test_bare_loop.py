from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fedflat as ff
from benchmarks.bare_loop import BareLoop
from benchmarks.workloads import WORKLOADS, Workload

# All clients take part and a batch is all that a client holds, so that nothing is drawn.
DENSE = replace(WORKLOADS["W3-mlp"], clients=3, samples=8, batch=8, pool=24, cohort=3, timed=3, steps=4)
CONVOLUTIONAL = replace(DENSE, model="cnn", options={"width": 4}, shape=(3, 8, 8))


@pytest.mark.slow
@pytest.mark.parametrize("work", [DENSE, CONVOLUTIONAL], ids=["dense", "convolutional"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_plain_loop_does_what_fedavg_does(work: Workload, channels_last: bool) -> None:
    loop = BareLoop(work, channels_last)
    sim = ff.Simulation(work.module(), work.data(), ff.methods.FedAvg(), work.client(), rounds=2, device="cpu")
    before = sim.w
    for _ in sim:
        loop.round(3)
    plain = torch.nn.utils.parameters_to_vector([p.contiguous() for p in loop.module.parameters()])
    assert (sim.w - before).norm() > 1e-3
    torch.testing.assert_close(plain.detach(), sim.w, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_round_takes_the_steps_of_the_work() -> None:
    """Batches of 3 from 8 samples: the last of an epoch is short, and the seventh step ends in the third epoch."""
    work = replace(DENSE, batch=3, steps=7)
    loop, seen = BareLoop(work, channels_last=False), []
    loop.module.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    loop.round(1)
    assert seen == [3, 3, 2, 3, 3, 2, 3]


def test_one_backpropagation_moves_nothing() -> None:
    loop = BareLoop(DENSE, channels_last=False)
    before = [p.detach().clone() for p in loop.module.parameters()]
    loop.backprop()
    assert all(torch.equal(p, q) for p, q in zip(loop.module.parameters(), before, strict=True))
    assert all(p.grad is not None for p in loop.module.parameters())

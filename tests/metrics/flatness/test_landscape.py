"""The loss and its gradient against plain PyTorch, and the memory of a pass against a process that takes it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedflat.core.objective import Objective
from fedflat.metrics.flatness import Subject
from support.federation import federation, tanh_network
from support.networks import landscape

MEASURE = """
import sys
from pathlib import Path
import numpy as np
import torch
import fedflat as ff
from fedflat.core.objective import Objective
from fedflat.metrics.flatness.hessian import Hessian
from fedflat.metrics.flatness.subject import Landscape

def in_bytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

def peak(pass_over, n):
    F = landscape(n)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = in_bytes("VmRSS")
    pass_over(F)
    return in_bytes("VmHWM") - before

def landscape(n):
    data = ff.FederatedData.from_clients([(torch.randn(n, 3, 32, 32), torch.arange(n) % 10)], classes=10)
    return Landscape(objective, data, np.arange(n), memory=2**40)

def product(F):
    hessian = Hessian(F, w)
    hessian(w)

torch.manual_seed(0)
torch.set_num_threads(1)
objective = Objective(ff.models.build("lenet", 10))
w = objective.space.flatten(objective.module)
counted = landscape(3).footprint
for pass_over, expected in (
    (lambda F: F.gradient(w), counted.gradient), (product, counted.graph + counted.product)
):
    peak(pass_over, 4)  # what a first pass sets up
    print(expected, (peak(pass_over, 96) - peak(pass_over, 32)) / 64)
"""


@pytest.mark.slow
def test_the_memory_counted_for_a_sample_is_what_a_process_takes() -> None:
    """LeNet's gradient and Hessian product; freed memory goes back to the system, so that it is not used again."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the system does not tell the peak of memory")
    settings = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    output = subprocess.run(
        [sys.executable, "-c", MEASURE], env=settings, capture_output=True, text=True, check=True
    ).stdout
    for counted, taken in (map(float, line.split()) for line in output.splitlines()):
        assert counted == pytest.approx(taken, rel=0.2)
    assert len(output.splitlines()) == 2


@pytest.mark.parametrize("at_once", [1, 7, 38])
def test_loss_and_gradient_are_those_of_all_samples_whatever_fits_at_once(at_once: int) -> None:
    network, data = tanh_network(), federation()
    F, w = landscape(network)
    F.memory = int(at_once * F.footprint.gradient) + 1
    assert max(len(batch.y) for batch in F.batches(F.footprint.gradient)) == at_once
    loss = cross_entropy(network(data.x), data.y)
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(network.parameters()))])
    assert F.loss(w) == pytest.approx(loss.item(), rel=1e-14)
    torch.testing.assert_close(F.gradient(w), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("number", [1, 5, 38, 100])
def test_parts_share_the_samples_out_and_average_to_the_whole(number: int) -> None:
    F, w = landscape(tanh_network())
    parts = F.parts(number)
    assert len(parts) == min(number, 38)
    assert sorted(torch.cat([part.samples for part in parts]).tolist()) == list(range(38))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sum(len(part) / 38 * part.loss(w) for part in parts) == pytest.approx(F.loss(w), rel=1e-14)


def test_the_subset_is_fixed_evenly_spaced_and_of_the_clients_samples() -> None:
    data, network = federation(), tanh_network()
    objective = Objective(network)
    subject = Subject(objective, objective.space.flatten(network), data, max_samples=10)
    assert np.array_equal(subject.pooled.samples, data.members[::4])
    assert subject.samples == "10 of 38 training samples"
    assert len(Subject(objective, subject.w, data).pooled) == 38
    assert np.array_equal(subject.client(1).samples, data.members[data.offsets[1] : data.offsets[2]][::2])

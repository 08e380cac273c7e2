"""The frozen part of a model is in memory once, whatever the number of clients in a stack."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

import fedflat as ff

CODE = """
import torch
from torch import nn
import fedflat as ff
torch.set_num_threads(1)
width = 1000
net = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
for clients in (1, 100):
    data = ff.FederatedData.from_clients([(torch.randn(4, 16), torch.arange(4) % 2)] * clients)
    sim = ff.Simulation(net, data, ff.methods.FedAvg(), ff.Client(steps=1, batch_size=4), rounds=1, executor="stacked",
                        adapter=ff.LoRA(targets=("2",), r=1))
    type(sim.executor).numbers_at_once = 10**9
    sim.executor.__dict__.pop("chunk", None)
    assert sim.executor.chunk >= clients
    sim.round()
    status = open("/proc/self/status").read()
    print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024)
"""


def test_stacks_are_as_large_as_activations_allow() -> None:
    """2,000 hidden units on 5 samples are 40 kB for a client, and there is more than one such vector."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 2000), nn.ReLU(), nn.Linear(2000, 2))
    data = ff.FederatedData.from_clients([(torch.randn(5, 6), torch.arange(5) % 2)] * 50)
    settings = {"client": ff.Client(steps=1, batch_size=5), "rounds": 1, "executor": "stacked"}
    adapter = ff.LoRA(targets=("0",), r=1, head="frozen")
    sim = ff.Simulation(module, data, ff.methods.FedAvg(), adapter=adapter, **settings)
    assert sim.executor.chunk > 50
    activations = 4 * 2000 * 5  # bytes of one client's hidden units
    type(sim.executor).bytes_at_once, before = 20 * activations, type(sim.executor).bytes_at_once
    try:
        del sim.executor.chunk
        assert 1 <= sim.executor.chunk <= 20
    finally:
        type(sim.executor).bytes_at_once = before


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_hundred_clients_share_the_frozen_base() -> None:
    """4 MB of base and 20 KB of adapters: a copy for each of 99 more clients would take 400 MB more."""
    out = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    one, hundred = map(int, out.stdout.split())
    assert hundred - one < 25e6

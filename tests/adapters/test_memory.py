"""The frozen part of a model is in memory once, whatever the number of clients in a stack."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
import torch
from torch import nn
import fedflat as ff
torch.set_num_threads(1)
clients, width = int(sys.argv[1]), 2000
net = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))
data = ff.FederatedData.from_clients([(torch.randn(4, 16), torch.arange(4) % 2)] * clients)
sim = ff.Simulation(net, data, ff.methods.FedAvg(), ff.Client(steps=2, batch_size=4), rounds=1, executor="stacked",
                    adapter=ff.LoRA(targets=("2",), r=1))
type(sim.executor).numbers_at_once = 10**9
sim.executor.__dict__.pop("chunk", None)
assert sim.executor.chunk >= clients
sim.round()
status = open("/proc/self/status").read()
print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024)
"""


def peak(clients: int) -> int:
    out = subprocess.run([sys.executable, "-c", CODE, str(clients)], capture_output=True, text=True, check=True)
    return int(out.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_hundred_clients_share_the_frozen_base() -> None:
    """16 MB of base and 40 KB of adapters: a copy for each of 99 more clients would take 1,600 MB more."""
    assert peak(100) - peak(1) < 100e6

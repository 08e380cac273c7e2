"""The memory that is told before a run is what the run takes."""

from __future__ import annotations

import pytest

from support.memory import counted

RUN = """
import torch, fedflat as ff
from fedflat.engine.peak import peak_bytes
from fedflat.engine.allocator import tune_allocator
tune_allocator()
torch.set_num_threads(1)

name, model, clients, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
shape = (3, 32, 32) if model == "lenet" else (64,)
g = torch.Generator().manual_seed(0)
x, y = torch.randn(400, *shape, generator=g), torch.randint(10, (400,), generator=g)
some = [(x[i % 7 * 40 : i % 7 * 40 + 40], y[i % 7 * 40 : i % 7 * 40 + 40]) for i in range(clients)]
data = ff.FederatedData.from_clients(some, test=(x, y), classes=10)
sim = ff.Simulation(model, data, ff.methods.find(name)(), ff.Client(batch_size=20), rounds=rounds,
                    participation=10, workers=1)
Path("/proc/self/clear_refs").write_text("5")
told = peak_bytes(sim)
Path("/proc/self/clear_refs").write_text("5")
for _ in sim:
    pass
print(told, in_bytes("VmHWM"))
"""


@pytest.mark.parametrize(
    ("name", "model", "clients"), [("FedSAM", "lenet", 20), ("Scaffold", "lenet", 20), ("FedSMOO", "mlp", 300)]
)
def test_it_is_kept_and_not_far_off(name: str, model: str, clients: int) -> None:
    told, taken = counted(RUN, name, model, clients, 12)
    assert taken <= told + 20 * 2**20
    assert told <= 1.5 * taken, "nor is it so high that nobody believes it"

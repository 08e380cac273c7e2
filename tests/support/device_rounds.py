"""Rounds on the stand-in for a GPU, whose waits docs/tests.md states: three clients, evaluation included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import fedflat as ff
from fedflat.methods import find
from support.federation import federation, simulation
from support.meta_device import MetaDevice


@dataclass(frozen=True)
class Waits:
    """How often the host waited in one round."""

    steps: int  # inside local training
    cohort: int  # from the first client's training until the sums of all are there, those inside local training too
    rest: int

    @classmethod
    def of_a_round(cls, sim: ff.Simulation, device: MetaDevice) -> Waits:
        """Of the next round."""
        device.waits.clear()
        sim.round()
        cohort = len(device.within("train"))
        return cls(len(device.within("local_round")), cohort, len(device.waits) - cohort)


def _method(name: str) -> Callable[..., ff.Simulation]:
    return lambda **settings: simulation(find(name)(), **settings)


def _dropout(**settings: Any) -> ff.Simulation:
    module = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Dropout(0.3), nn.Linear(7, 3)).double()
    return simulation(find("FedAvg")(), model=module, **settings)


def _pictures(**settings: Any) -> ff.Simulation:
    """Four local steps of each client."""
    x, y = torch.zeros(8, 3, 8, 8, dtype=torch.uint8), torch.arange(8) % 3
    data = ff.FederatedData.from_clients([(x, y)] * 3, test=(x, y), classes=3, augment="fl-simulator")
    return ff.Simulation("cnn", data, find("FedAvg")(), ff.Client(batch_size=2), rounds=3, **settings)


def _adapter(**settings: Any) -> ff.Simulation:
    module = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    lora = ff.LoRA(targets=("0",), r=2, mode="alternate")
    client = ff.Client(batch_size=4, epochs=3)
    return ff.Simulation(module, federation(), find("FedAvg")(), client, rounds=3, participation=3, adapter=lora,
                         **settings)  # fmt: skip


ROUNDS: dict[str, Callable[..., ff.Simulation]] = {
    **{name: _method(name) for name in ("FedAvg", "FedSMOO", "Scaffold", "FedWMSAM", "MimeLite")},
    "Scaffold, records in a file": lambda **settings: simulation(find("Scaffold")(), store_budget=0, **settings),
    "FedAvg, dropout": _dropout,
    "FedAvg, cropped pictures": _pictures,
    "FedAvg, an adapter by turns": _adapter,
}


def counted(name: str, executor: str) -> Waits:
    """The waits in the second round of `ROUNDS[name]`."""
    with MetaDevice() as device, ROUNDS[name](device="meta", executor=executor) as sim:
        sim.round()
        return Waits.of_a_round(sim, device)


def table() -> list[str]:
    """The cells of the table for each of `ROUNDS`: waits inside local training and in the whole round."""
    rows = []
    for name in ROUNDS:
        found = [counted(name, executor) for executor in ("sequential", "stacked")]
        cells = [str(n) for one in found for n in (one.steps, one.cohort + one.rest)]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    print("\n".join(table()))

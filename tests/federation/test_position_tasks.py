"""Texts with a next token at each place, and segmented pictures: a federation has the bits of a simulation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.objective import Objective
from fedflat.core.task import LOSSES, Kind
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.server import FederatedServer
from fedflat.methods import find
from fedflat.rounds.model_parts import method_of_run
from fedflat.rounds.run_plan import RunPlan
from support.positions import federation, network
from support.transports import InProcessTransport

CLIENT, ROUNDS = ff.Client(lr=0.1, epochs=2, batch_size=3), 2


def party(method: Method, kind: Kind) -> tuple[Method, Objective]:
    objective = Objective(network(kind, torch.float32), task=LOSSES[kind])
    return method_of_run(method, objective, CLIENT), objective


@pytest.mark.parametrize("kind", ["next-token", "segmentation"])
def test_a_federation_has_the_bits_of_a_simulation(kind: Kind, tmp_path: Path) -> None:
    method, plan, data = find("FedSMOO")(), RunPlan(CLIENT, rounds=ROUNDS), federation(kind)
    names = [f"site-{i}" for i in range(data.clients)]
    members = Membership(dict(zip(names, data.sizes.tolist(), strict=True)), "here")
    server = FederatedServer(*party(method, kind), plan, members, "uniform", "study", data.shape)
    transport = InProcessTransport({
        name: FederatedClient(*party(method, kind), data.alone(i), plan, tmp_path / name, "study")
        for i, name in enumerate(names)
    })  # fmt: skip
    sim = ff.Simulation(network(kind, torch.float32), data, method, CLIENT, ROUNDS, executor="sequential", workers=1)
    for _ in range(ROUNDS):
        assert not server.round(transport).missing
        sim.round()
    for name, x in sim.server.tensors().items():
        assert torch.equal(getattr(server.state, name), x)


def test_a_client_with_labels_for_another_task_is_refused(tmp_path: Path) -> None:
    texts, plan = federation("next-token"), RunPlan(CLIENT, rounds=ROUNDS)
    with pytest.raises(InputError, match="the study is of segmentation, and the labels are those of next-token"):
        FederatedClient(*party(find("FedAvg")(), "segmentation"), texts.alone(0), plan, tmp_path, "study")

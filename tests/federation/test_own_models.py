"""Clients of a federation train and keep the models that those of a simulation do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedflat as ff
from fedflat.core.objective import Objective
from fedflat.core.own_model import own_model_of
from fedflat.federation.client import ClientState, FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.server import FederatedServer
from fedflat.methods import find
from fedflat.rounds.model_parts import method_of_run
from fedflat.rounds.run_plan import RunPlan
from support.federation import federation, tanh_network
from support.transports import InProcessTransport

CLIENT = ff.Client(lr=0.1, epochs=2, batch_size=4, momentum=0.5, weight_decay=0.01, max_norm=1.0)
DATA, NAMES, ROUNDS = federation((8, 6, 11)), ("a", "b", "c"), 3


@pytest.mark.parametrize("name", ["Ditto", "FedRep"])
def test_own_models_have_the_bits_of_a_simulation(name: str, tmp_path: Path) -> None:
    plan = RunPlan(CLIENT, rounds=ROUNDS)
    model = tanh_network().float()

    def party() -> tuple[ff.Method, Objective]:
        objective = Objective(tanh_network().float())
        return method_of_run(find(name)(), objective, CLIENT), objective

    members = Membership(dict(zip(NAMES, DATA.sizes.tolist(), strict=True)), "here")
    server = FederatedServer(*party(), plan, members, "uniform", "study", DATA.shape)
    clients = {who: FederatedClient(*party(), DATA.alone(i), plan, tmp_path / who, "study")
               for i, who in enumerate(NAMES)}  # fmt: skip
    transport = InProcessTransport(clients)
    sim = ff.Simulation(model, DATA, find(name)(), CLIENT, ROUNDS, executor="sequential", workers=1)
    for _ in range(ROUNDS):
        assert not server.round(transport).missing
        sim.round()
    assert torch.equal(server.state.w, sim.server.w)
    method, norms = server.method, set()
    like = method.init_client(method.broadcast(server.state).map(lambda x: x[None])).map(lambda x: x[0])
    for i, who in enumerate(NAMES):
        state = ClientState(tmp_path / who, method.client)
        record = state.load(state.newest, like)
        own = own_model_of(method, server.state.w, record)
        assert torch.equal(own, sim.own_model(i))
        norms.add(float(own.norm()))
    assert len(norms) == len(NAMES), "each client has another one"

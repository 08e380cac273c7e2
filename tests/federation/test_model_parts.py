"""A federation sends what the simulator sends: statistics beside the parameters, and no part that stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.objective import Objective
from fedflat.federation.client import FederatedClient
from fedflat.federation.membership import Membership
from fedflat.federation.messages import unpack
from fedflat.federation.secure_sum.messages import KeysRequest, summand_layout
from fedflat.federation.server import FederatedServer
from fedflat.methods import find
from fedflat.rounds.model_parts import check_parts, with_parts
from fedflat.rounds.run_plan import RunPlan
from support.federation import federation
from support.transports import InProcessTransport

CLIENT = ff.Client(lr=0.1, epochs=2, batch_size=4)
DATA, NAMES, ROUNDS = federation((8, 6, 11)), ("a", "b", "c"), 3
PARTS = [
    {"buffers": "averaged", "keep": []},
    {"buffers": "local", "keep": []},
    {"buffers": "averaged", "keep": ["1", "3.bias"]},
]


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def party(method: Method, parts: Mapping[str, object]) -> tuple[Method, Objective]:
    """What a server or client of its own is made of."""
    objective = Objective(module(), buffers=parts["buffers"])
    return with_parts(method, objective, parts["buffers"], parts["keep"]), objective


@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("name", ["FedSAM", "SCAFFOLD", "FedSMOO"])
def test_models_and_statistics_have_the_bits_of_a_simulation(
    name: str, parts: Mapping[str, object], tmp_path: Path
) -> None:
    method, plan = find(name)(), RunPlan(CLIENT, rounds=ROUNDS)
    members = Membership(dict(zip(NAMES, DATA.sizes.tolist(), strict=True)), "here")
    server = FederatedServer(*party(method, parts), plan, members, "uniform", "study", DATA.shape)
    transport = InProcessTransport({
        who: FederatedClient(*party(method, parts), DATA.alone(i), plan, tmp_path / who, "study")
        for i, who in enumerate(NAMES)
    })  # fmt: skip
    sim = ff.Simulation(module(), DATA, method, CLIENT, ROUNDS, executor="sequential", workers=1, dtype=torch.float32,
                        **parts)  # fmt: skip
    for _ in range(ROUNDS):
        report = server.round(transport)
        sim.round()
        assert not report.missing
        assert report.metrics["drift"] == pytest.approx(sim.history[-1]["drift"])
    for name, x in sim.server.tensors().items():
        assert torch.equal(getattr(server.state, name), x)
    for name, x in sim.model.state_dict().items():
        assert torch.equal(server.model.state_dict()[name], x)


def test_a_guard_on_norms_is_refused_with_averaged_statistics() -> None:
    method, _ = party(find("FedAvg")(), PARTS[0])
    with pytest.raises(InputError, match="guard: a norm in parameter units"):
        check_parts(method, ff.Guard(bound=1.0), is_private=False)
    check_parts(method, ff.Guard(max_weight=2.0), is_private=False)


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_a_secure_sum_has_what_is_sent_exactly(parts: Mapping[str, object], tmp_path: Path) -> None:
    """The sum of one client's reply, which the server would unmask, is the reply."""
    plan, members = RunPlan(CLIENT, rounds=ROUNDS), Membership(dict.fromkeys(NAMES, 5), "here")
    server = FederatedServer(*party(find("FedAvg")(), parts), plan, members, "uniform", "study", DATA.shape)
    client = FederatedClient(*party(find("FedAvg")(), parts), DATA.alone(1), plan, tmp_path, "study")
    asked = vars(server._requests(server.cohort(0), server.context(3))["b"])
    reply, sums = client.summand(KeysRequest(**asked, session="session", weight=1.0), None, "uniform")
    assert list(sums) == list(summand_layout(server.method, server.state.w))
    assert ("mean.statistics" in sums) == (parts == PARTS[0]), "the others keep all theirs"
    up, widths = server.method.up, server.method.up.widths(len(server.state.w), server.method)
    for name, sent in unpack(up, widths, torch.float32, reply.up).tensors().items():
        assert not sent.numel() or torch.equal(sums[f"mean.{name}"].value().float(), sent)

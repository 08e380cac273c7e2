"""The guard in a federation: the same object as in a simulation, and the same bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import Study
from fedflat.federation.server import RoundFailedError, RoundTerms
from fedflat.methods import find
from support.federation import simulation
from support.studies import run_spec
from support.transports import InProcessTransport, client_names, federated_clients, federated_server

CLIENT = ff.Client(lr=0.1, epochs=2, batch_size=4)
ROUNDS = 4
GUARDS = {"clip": ff.Guard(bound=0.5, multiple=1.2), "refuse": ff.Guard(multiple=2.0, bound=2.0, action="refuse")}
FLIP = ff.Attack(kind="sign-flip", share=0.3)


def simulated(method: Method, **changes) -> ff.Simulation:
    module = simulation(method).objective.module.float()
    sim = simulation(method, model=module, dtype=torch.float32, rounds=ROUNDS, participation=4, executor="sequential",
                     client={"lr": 0.1, "lr_decay": 1.0, "epochs": 2, "batch_size": 4}, **changes)  # fmt: skip
    list(sim)
    return sim


def federation(method: Method, folder: Path, bad: set[str], **changes):
    """Server and clients of the same federation; the `bad` ones send minus ten times their records."""

    def change(client, reply):
        if client not in bad:
            return reply
        flipped = {
            name: replace(x, data=(np.frombuffer(x.data, "<f4") * np.float32(-10)).tobytes())
            for name, x in reply.up.items()
        }
        return replace(reply, up=flipped)

    server = federated_server(method, CLIENT, rule=4, **({"terms": RoundTerms(quorum=0.25)} | changes))
    return server, InProcessTransport(federated_clients(method, folder, CLIENT, rule=4), change)


@pytest.mark.slow
@pytest.mark.parametrize("action", GUARDS)
@pytest.mark.parametrize("name", ["FedAvg", "Scaffold", "FedExP", "FedWMSAM", "FedSMOO"])
def test_attacked_and_guarded_it_has_the_bits_of_the_simulation(name: str, action: str, tmp_path: Path) -> None:
    """So it shortens and refuses the same, and of a refused client nothing stays anywhere."""
    method, guard = find(name)(), GUARDS[action]
    sim = simulated(method, guard=guard, attack=FLIP)
    names = client_names(sim.data)
    server, transport = federation(method, tmp_path, {names[i] for i in sim._attackers.clients}, guard=guard)
    reports = [server.round(transport) for _ in range(ROUNDS)]
    for field, x in sim.server.tensors().items():
        assert torch.equal(getattr(server.state, field), x), field
    assert server.guard == sim._server.guard
    counted = [{name: row[name] for name in ("clients", "clipped", "refused")} for row in sim.history]
    assert [{name: report.metrics[name] for name in counted[0]} for report in reports] == counted
    assert sum(row["clipped"] + row["refused"] for row in counted) > 0
    if action == "refuse":
        said = [reason for report in reports for reason in report.missing.values()]
        assert said
        assert all(reason.startswith("guard: norm is") for reason in said)


def test_a_restored_server_has_the_same_bound(tmp_path: Path) -> None:
    server, transport = federation(ff.methods.FedAvg(), tmp_path / "a", set(), guard=GUARDS["clip"])
    server.round(transport)
    server.save(tmp_path / "round.safetensors")
    again = federated_server(ff.methods.FedAvg(), CLIENT, rule=4, guard=GUARDS["clip"])
    again.load(tmp_path / "round.safetensors")
    assert again.guard == server.guard
    assert len(again.guard.medians) == 1


def test_a_guard_with_a_bound_on_norms_takes_the_place_of_norm_multiple(tmp_path: Path) -> None:
    """One on weights alone does not."""
    terms = RoundTerms(norm_multiple=1.0)
    bounds = [federated_server(ff.methods.FedAvg(), CLIENT, terms=terms, guard=guard).guard.field_multiple
              for guard in (None, ff.Guard(bound=1.0), ff.Guard(multiple=2.0), ff.Guard(max_weight=2.0))]  # fmt: skip
    assert bounds == [1.0, None, None, 1.0]


def test_weights_are_limited(tmp_path: Path) -> None:
    """Samples are 5, 12, 3, 8, 1, 9: of all six the lower median is 5."""
    server = federated_server(ff.methods.FedAvg(), CLIENT, rule=1.0, weights="samples", guard=ff.Guard(max_weight=1.5))
    weights = [one.weight for one in server._expected(server.cohort(0)).values()]
    assert weights == [5, 7, 3, 7, 1, 7]


def test_if_all_are_refused_the_round_fails_in_one_line(tmp_path: Path) -> None:
    guard = ff.Guard(bound=1e-9, action="refuse")
    server, transport = federation(ff.methods.FedAvg(), tmp_path, set(), guard=guard)
    before = server.w
    with pytest.raises(RoundFailedError, match=r"0 of 4 clients replied, 1 must \(clinic-\d+: guard: norm is"):
        server.round(transport)
    assert torch.equal(server.w, before)


def test_an_attack_is_no_federation() -> None:
    run = run_spec(attack={"kind": "noise"})
    with pytest.raises(InputError, match="attack is an experiment"):
        Study(run, RunSettings(clients=run.data.clients))


def test_the_guard_is_part_of_the_study() -> None:
    """Whoever has another one has another digest, and is not registered."""
    settings = RunSettings(clients=10)
    digests = {Study(run_spec(**guard), settings).digest for guard in ({}, {"guard": {"bound": 1.0}})}
    assert len(digests) == 2

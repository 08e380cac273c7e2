"""Flower's apps on an in-process grid: the simulator's bits, and who may take part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import fedflat as ff
from fedflat.core.errors import InputError
from fedflat.experiments import runner
from fedflat.federation.flower.client_app import client_app
from fedflat.federation.flower.transport import GatheringError
from fedflat.federation.server import RoundFailedError
from fedflat.federation.terms import SETTINGS
from fedflat.methods import find
from support.effort import FEW_ROUNDS, chosen, covering_methods
from support.flower_fixtures import OWN_SAMPLES, GridFederation, failing, own_clients, own_study, simulated, study_of
from support.local_grid import LocalGrid, Node, ServerEnded, ending_in


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(["FedSMOO", "FedRobust", "SWA"], list(covering_methods())))
def test_every_method_leaves_the_file_of_the_simulator(name: str, tmp_path: Path) -> None:
    """`tests/docs/test_method_grid.py` has this of the covering methods, each with a setting."""
    spec = study_of(method={"name": name} | FEW_ROUNDS.get(name, {}))
    federation = GridFederation(spec, tmp_path / "federation")
    assert federation.serve() == simulated(spec, tmp_path / "simulation")
    assert [event["missing"] for event in federation.events("round")] == [{}] * 4


@pytest.mark.slow
def test_what_a_federation_leaves(tmp_path: Path) -> None:
    """Metrics are the simulator's; events record all that happened."""
    spec = study_of(eval_every=2)
    federation = GridFederation(spec, tmp_path / "federation")
    federation.serve()
    runner.run(spec, tmp_path / "simulation")
    ours, theirs = (
        pq.read_table(tmp_path / name / "metrics.parquet").to_pydict()
        for name in ("federation/out", "simulation")
    )  # fmt: skip
    for name in ("t", "lr", "clients", "gradients", "test_accuracy", "test_loss"):
        assert ours[name] == theirs[name], name
    assert ours["drift"] == pytest.approx(theirs["drift"], rel=1e-6)
    assert [event["client"] for event in federation.events("client")] == [f"client-{i}" for i in range(5)]
    result = json.loads((federation.out / "result.json").read_text())
    assert result["model_sha256"] == federation.events("finished")[0]["model_sha256"]
    assert [path.name for path in sorted((federation.out / "checkpoint").iterdir())] == [
        f"round-{t:06d}.safetensors" for t in (2, 3, 4)
    ]


def simulation_of_own(rounds: int) -> ff.Simulation:
    spec = own_study()
    sim = ff.Simulation(
        model="mlp", model_options={"hidden": [5]}, data=ff.FederatedData.from_clients(own_clients(), classes=3),
        method=find("scaffold")(), client=spec.client, participation=2, rounds=rounds,
        executor="sequential", dtype=torch.float32,
    )  # fmt: skip
    list(sim)
    return sim


def test_clients_bring_their_own_samples(tmp_path: Path) -> None:
    """From folders and from a function, and tested at the server: the bits are those of a simulation."""
    federation = GridFederation(own_study(), tmp_path / "federation", test=str(tmp_path / "b"), **OWN_SAMPLES)
    for name, (x, y) in zip("abc", own_clients(), strict=True):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", x)
        np.save(tmp_path / name / "y.npy", y)
    nodes = {i: federation.own_node(name, data=str(tmp_path / name)) for i, name in enumerate("abc", start=7)}
    given = {"state": str(federation.folder / "state"), "name": "c", "data": "nowhere"}
    nodes[9] = Node(client_app(federation.folder, lambda node: own_clients()["abc".index(node["name"])]), given)
    federation.serve(nodes)
    model, sim = load_file(federation.out / "model.safetensors"), simulation_of_own(4)
    assert all(torch.equal(model[name], p) for name, p in sim.model.named_parameters())
    x, y = (torch.from_numpy(part) for part in own_clients()[1])
    right = (sim.model(x).argmax(-1) == y).double().mean()
    assert federation.events("round")[-1]["test_accuracy"] == pytest.approx(float(right))


@pytest.mark.slow
def test_the_server_goes_on_from_its_last_round(tmp_path: Path) -> None:
    """Stopped in the middle of round 2: clients have trained in it already, and train in it again."""
    federation = GridFederation(study_of(method="fedsmoo"), tmp_path / "federation")
    with pytest.raises(ServerEnded):
        federation.serve(grid=ending_in(2))
    assert federation.events("round")[-1]["t"] == 1
    model = federation.serve()
    assert model == simulated(federation.spec, tmp_path / "simulation")
    assert [event["done"] for event in federation.events("begun")] == [0, 2]
    assert federation.serve() == model, "when it is called again, nothing is left to do"


@pytest.mark.usefixtures("no_waiting")
def test_below_the_quorum_a_round_is_tried_again_and_then_the_federation_stops(tmp_path: Path) -> None:
    federation = GridFederation(study_of(participation=1.0), tmp_path / "federation", deadline=3.0, quorum=1.0)
    federation.nodes[103].tamper = lambda number, contents: None if federation.events("begun") else contents
    with pytest.raises(RoundFailedError, match=r"round 0: 4 of 5 clients replied, 5 must \(client-3: no answer"):
        federation.serve()
    assert [event["attempt"] for event in federation.events("round failed")] == [1, 2, 3]
    federation.nodes[103] = federation.node(3, 5)
    federation.config["deadline"] = 5.0
    assert federation.serve() == simulated(federation.spec, tmp_path / "simulation")


@pytest.mark.usefixtures("no_waiting")
def test_who_is_no_client_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two with one name, a key of another name, a number out of range, another version: none is registered."""
    federation = GridFederation(study_of(rounds=1), tmp_path / "federation", wait=1.0)
    federation.nodes[200] = federation.node(2, 5)
    federation.nodes[201] = federation.node(7, 5)
    federation.nodes[202] = federation.node(1, 6)
    federation.nodes[104].registered = "client-0"
    with pytest.raises(
        GatheringError, match=r"4 of 5 clients came within 1 seconds \(client-0, .*, client-3\); node"
    ) as e:
        federation.serve()
    for line in (
        "node 104 is none: client-4: its key was registered with the name client-0",
        "node 200 is none: client-2: another node has this name",
        "node 201 is none: node-config: partition-id is 7, expected 0 to 4",
        "node 202 is none: node-config: num-partitions is 6, the study has 5 clients",
    ):
        assert line in str(e.value)
    assert not (federation.out / "checkpoint").exists() or not any((federation.out / "checkpoint").iterdir())
    assert federation.events("failed")[0]["reason"] == str(e.value)
    monkeypatch.setattr("fedflat.federation.flower.server_app.version", lambda: "0.0.9")
    with failing(GatheringError, f"client-0: version is {ff.__version__}, the server's 0.0.9"):
        federation.serve()


def test_one_that_comes_after_the_beginning_waits(tmp_path: Path) -> None:
    federation = GridFederation(own_study(), tmp_path / "federation", **OWN_SAMPLES)
    samples = dict(zip("abcd", [*own_clients(), own_clients()[0]], strict=True))
    nodes = federation.own_nodes(samples.__getitem__, "abcd")
    late = nodes.pop(4)

    class Late(LocalGrid):
        def push_messages(self, messages):
            if federation.events("round"):
                self.nodes.setdefault(4, late)
            return super().push_messages(messages)

    federation.serve(nodes, Late)
    refused = federation.events("node refused")
    assert [event["reason"] for event in refused] == ["d: came after the federation had begun, and waits for the next"]


def test_the_federation_has_as_many_members_as_it_was_to_have(tmp_path: Path) -> None:
    """All come at once, and one is too many."""
    federation = GridFederation(own_study(rounds=1), tmp_path / "federation", **OWN_SAMPLES)
    samples = dict(zip("abcd", [*own_clients(), own_clients()[0]], strict=True))
    federation.serve(federation.own_nodes(samples.__getitem__, "abcd"))
    assert federation.events("begun")[0]["clients"] == 3
    reasons = [event["reason"] for event in federation.events("node refused")]
    assert reasons == ["d: came after the federation had begun, and waits for the next"]


@pytest.mark.usefixtures("no_waiting")
def test_a_client_whose_samples_have_changed_is_refused(tmp_path: Path) -> None:
    federation = GridFederation(own_study(), tmp_path / "federation", deadline=3.0, quorum=1.0, **OWN_SAMPLES)
    samples = dict(zip("abc", own_clients(), strict=True))
    nodes = federation.own_nodes(lambda name: samples[name])

    class Changing(LocalGrid):
        def pull_messages(self, message_ids):
            found = super().pull_messages(message_ids)
            if found and found[0].metadata.group_id == "1":
                samples["b"] = tuple(part[:2] for part in samples["b"])
                raise KeyboardInterrupt
            return found

    with pytest.raises(KeyboardInterrupt):
        federation.serve(nodes, Changing)
    with pytest.raises(RoundFailedError):
        federation.serve(nodes)
    reasons = [event["reason"] for event in federation.events("node refused")]
    assert reasons == ["b: has 2 samples, and had 4 when it joined"]


MEMBERS = "clinic-a=9 clinic-b=4"


def samples_of(n: int):
    rng = np.random.default_rng(n)
    return rng.normal(0, 1, (n, 6)).astype("float32"), rng.integers(3, size=n)


def federation_with(folder: Path, sizes: dict[str, int], **settings) -> tuple[GridFederation, dict[int, Node]]:
    """A federation that begins with two clients; nodes of clients with so many samples."""
    spec = study_of(model={"name": "mlp", "options": {"hidden": [5]}}, participation=1.0, rounds=2)
    federation = GridFederation(spec, folder, **{**OWN_SAMPLES, "clients": 2, "wait": 1.0} | settings)
    return federation, federation.own_nodes(lambda name: samples_of(sizes[name]), list(sizes))


def test_members_are_those_that_the_operator_names(tmp_path: Path) -> None:
    """A client that is not named comes first. It is refused, and the two that are named train."""
    federation, nodes = federation_with(tmp_path, {"stranger": 9, "clinic-a": 9, "clinic-b": 4}, members=MEMBERS)
    federation.serve(nodes)
    assert [event["client"] for event in federation.events("client")] == ["clinic-a", "clinic-b"]
    reasons = [event["reason"] for event in federation.events("node refused")]
    assert reasons == ["stranger: is not one of the run-config members"]
    assert [event["missing"] for event in federation.events("round")] == [{}, {}]


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.slow
def test_a_member_has_the_samples_that_the_operator_says(tmp_path: Path) -> None:
    federation, nodes = federation_with(tmp_path, {"clinic-a": 9, "clinic-b": 5}, members=MEMBERS)
    with failing(GatheringError, "clinic-b: has 5 samples, and the run-config members say 4"):
        federation.serve(nodes)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.slow
def test_a_claim_of_a_thousand_million_samples_is_refused(tmp_path: Path) -> None:
    """It would be the client's weight, where clients are weighted by samples."""
    federation, nodes = federation_with(tmp_path / "lying", {"clinic-a": 9, "clinic-b": 4})
    honest = nodes[2].app

    def lying(message, context):
        reply = honest(message, context)
        if message.metadata.message_type == "query":
            reply.content["introduction"]["samples"] = 10**9
        return reply

    nodes[2] = Node(lying, nodes[2].config)
    with failing(GatheringError, "clinic-b: says 1000000000 samples, max-samples is 1000000"):
        federation.serve(nodes)
    federation, nodes = federation_with(tmp_path / "few", {"clinic-a": 9, "clinic-b": 4}, **{"max-samples": 8})
    with failing(GatheringError, "clinic-a: says 9 samples, max-samples is 8"):
        federation.serve(nodes)
    assert SETTINGS["max_samples"].default == 10**6


def test_a_federation_that_has_begun_keeps_its_members(tmp_path: Path) -> None:
    """Members that are named later must be the same. A lower max-samples refuses nobody who is a member already."""
    federation, nodes = federation_with(tmp_path, {"clinic-a": 9, "clinic-b": 4})
    federation.serve(nodes)
    federation.config["members"] = "clinic-a=9 clinic-b=5"
    with failing(InputError, "has begun with other run-config members: clinic-b is 4 there and 5 here"):
        federation.serve(nodes)
    federation.config["members"] = ""
    federation.config["max-samples"] = 3
    federation.serve(nodes)
    federation.config["members"] = MEMBERS
    federation.serve(nodes)

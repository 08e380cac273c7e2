"""Members that join and leave between rounds: their numbers, N in the equations, and who may not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedflat.core.errors import InputError
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.directory import FederationDirectory, check
from fedflat.federation.flower.ejections import Ejections
from fedflat.federation.flower.settings import OperatorRegistry, RunSettings
from fedflat.federation.membership import Membership
from fedflat.rounds import checkpoint
from support.flower_fixtures import GridFederation, failing, study_of
from support.local_grid import LocalGrid, Node, ServerEnded, ending_in

SIZES = {"anna": 9, "bert": 4, "carl": 6, "adam": 5}  # `adam` would be the first of the sorted names
OWN = {"shape": "6", "classes": 3}


def samples_of(node: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return a client's samples, which follow from its name."""
    n, rng = SIZES[node["name"]], np.random.default_rng(sum(map(ord, node["name"])))
    return rng.normal(0, 1, (n, 6)).astype("float32"), rng.integers(3, size=n)


class GrowingFederation(GridFederation):
    """A federation that begins with three clients; `adam` has a node after round `comes`, if at all."""

    def __init__(self, spec: RunSpec, folder: Path, **settings: Any) -> None:
        super().__init__(spec, folder, **{**OWN, "clients": 3, "wait": 0.5} | settings)
        self.nodes = self.own_nodes(lambda name: samples_of({"name": name}), [*SIZES])
        self.late = self.nodes.pop(4)

    def growing(self, comes: int = 0, does: Callable[[int], None] = lambda t: None) -> type[LocalGrid]:
        """Return a grid on which `adam` connects in round `comes`, and `does` is called in each.

        It is asked for its samples in the next step (of a secure sum, or of the next round), and joins one round later.
        """
        late: Node = self.late

        class Growing(LocalGrid):
            def pull_messages(self, message_ids):
                found = super().pull_messages(message_ids)
                if found and found[0].metadata.group_id:
                    t = int(found[0].metadata.group_id)
                    does(t)
                    if t >= comes:
                        self.nodes[4] = late
                return found

        return Growing


def growing_study(method: str = "scaffold", **changes: Any) -> RunSpec:
    """Return a study in which all clients take part, in each of four rounds."""
    model = {"name": "mlp", "options": {"hidden": [5]}}
    return study_of(**{"model": model, "method": method, "participation": 1.0, "dtype": "float64"} | changes)


def kept_by_clients(federation: GridFederation, field: str) -> dict[str, torch.Tensor]:
    """Return a field of the newest record of each client, in the order of names."""
    found = {}
    for folder in sorted(federation.folder.glob("state/*/*")):
        files = sorted(folder.glob("round-*.safetensors"))
        if files:
            found[folder.name] = load_file(files[-1])[field]
    return found


@pytest.mark.parametrize(
    ("method", "server", "client"), [("scaffold", "c", "c"), ("feddyn", "h", "h"), ("fedsmoo", "h", "h")]
)
def test_a_mean_over_all_clients_is_one_after_a_client_has_joined(
    method: str, server: str, client: str, tmp_path: Path
) -> None:
    """The lemma of Scaffold and FedDyn, over three clients at first and over four in the end."""
    federation = GrowingFederation(growing_study(method), tmp_path / "federation", **{"join-later": True})
    federation.serve(grid=federation.growing())
    assert [len(event["counted"]) for event in federation.events("round")] == [3, 3, 4, 4]
    [joined] = federation.events("joined")
    assert (joined["client"], joined["t"], joined["samples"], joined["clients"]) == ("adam", 2, 5, 4)
    kept = kept_by_clients(federation, client)
    assert len(kept) == 4
    state = checkpoint.load(FederationDirectory(federation.out).newest().path)[0][f"server.{server}"]
    torch.testing.assert_close(state, torch.stack(list(kept.values())).mean(0), rtol=0, atol=1e-12)
    assert {name: problem for name, problem in check(federation.out) if problem} == {}


def test_a_client_that_joins_has_the_next_number_and_no_other_number_changes(tmp_path: Path) -> None:
    federation = GrowingFederation(growing_study(), tmp_path / "federation", **{"join-later": True})
    federation.serve(grid=federation.growing())
    members = Membership.load(FederationDirectory(federation.out).newest().path)
    assert members.members == SIZES
    assert list(members.members) == ["anna", "bert", "carl", "adam"]


def test_whoever_trained_before_has_the_bits_of_a_federation_that_did_not_grow(tmp_path: Path) -> None:
    """A client's batches follow from its number, which stays: FedAvg's model before another one joins is the same."""
    usual = GrowingFederation(growing_study("fedavg", rounds=2), tmp_path / "usual")
    growing = GrowingFederation(growing_study("fedavg"), tmp_path / "growing", **{"join-later": True})
    growing.serve(grid=growing.growing())
    assert usual.serve()
    states = FederationDirectory(growing.out).states
    assert torch.equal(checkpoint.load(states[2])[0]["server.w"],
                       checkpoint.load(FederationDirectory(usual.out).states[2])[0]["server.w"])  # fmt: skip


def test_a_stopped_server_goes_on_with_the_clients_that_have_joined(tmp_path: Path) -> None:
    """Stopped in the round in which the client trains for the first time: it joins again, with the same number."""
    whole = GrowingFederation(growing_study(), tmp_path / "whole", **{"join-later": True})
    model = whole.serve(grid=whole.growing())
    federation = GrowingFederation(growing_study(), tmp_path / "stopped", **{"join-later": True})
    growing = federation.growing()
    for t in (2, 3):
        ending = type("Ending", (growing, ending_in(t)), {})
        with pytest.raises(ServerEnded):
            federation.serve({**federation.nodes, **({4: federation.late} if t == 3 else {})}, grid=ending)
    assert federation.serve({**federation.nodes, 4: federation.late}) == model


MEMBERS = "anna=9 bert=4 carl=6"


def test_a_client_that_the_operator_adds_to_the_registry_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused until then. The file is read whenever a node registers."""
    monkeypatch.setattr("fedflat.federation.flower.transport.RETRY_SECONDS", 0.0)
    registry = tmp_path / "members.toml"
    monkeypatch.setattr(OperatorRegistry, "keys_of", lambda *_: {b""})  # that of every node here

    def write(names: list[str]) -> None:
        registry.write_text("".join(f"[{name}]\nsamples = {SIZES[name]}\nkeys = ['any']\n" for name in names))

    write(["anna", "bert", "carl"])
    spec = growing_study(rounds=6)
    federation = GrowingFederation(spec, tmp_path / "federation", registry=str(registry))
    grid = federation.growing(does=lambda t: write([*SIZES]) if t == 2 else None)
    federation.serve(grid=grid)
    assert [event["client"] for event in federation.events("joined")] == ["adam"]
    assert federation.events("joined")[0]["t"] > 2
    assert "adam: is not one of the run-config members" in {
        event["reason"] for event in federation.events("node refused")
    }


def test_members_of_a_longer_list_join_when_the_server_begins_again(tmp_path: Path) -> None:
    federation = GrowingFederation(growing_study(), tmp_path / "federation", members=MEMBERS)
    with pytest.raises(ServerEnded):
        federation.serve(grid=ending_in(1))
    federation.config["members"] = f"{MEMBERS} adam=5"
    federation.serve({**federation.nodes, 4: federation.late})
    assert federation.events("round")[-1]["counted"] == ["adam", "anna", "bert", "carl"]
    federation.config["members"] = "anna=9 bert=4 adam=5"
    FederationDirectory(federation.out).roll_back(3)
    with failing(InputError, "has begun with other run-config members: carl"):
        federation.serve()


def test_it_begins_with_the_first_of_those_that_are_listed(tmp_path: Path) -> None:
    federation = GrowingFederation(growing_study(), tmp_path / "federation", members=f"{MEMBERS} adam=5")
    federation.serve(grid=federation.growing())
    assert [len(event["counted"]) for event in federation.events("round")] == [3, 3, 4, 4]


@pytest.mark.parametrize(
    ("changes", "settings", "reason"),
    [
        ({}, {}, "adam: came after the federation had begun, and waits for the next"),
        ({"participation": [[0, 1, 2]] * 4}, {"join-later": True}, "the members are fixed"),
        ({"privacy": {"epsilon": 50.0, "delta": 1e-3, "clip": 0.5, "rate": 1.0}, "participation": 0.2,
          "client": {"steps": 2, "batch_size": 4}}, {"join-later": True}, "the members of a private federation"),
    ],
)  # fmt: skip
def test_a_client_that_may_not_join_is_told_why(
    changes: dict[str, Any], settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    if "privacy" in changes:
        pytest.importorskip("dp_accounting")
    federation = GrowingFederation(growing_study(**changes), tmp_path / "federation", **settings)
    federation.serve(grid=federation.growing())
    assert federation.events("joined") == []
    assert reason in federation.events("node refused")[0]["reason"]
    if changes:
        with failing(InputError, "eject anna instead"):
            Ejections(federation.out).remove("anna")


def test_a_member_that_leaves_is_no_part_of_n(tmp_path: Path, fedflat: Any) -> None:
    """FedDyn adds S/N times the mean change to h: with three of three present in a round, all of it."""
    federation = GrowingFederation(growing_study("feddyn"), tmp_path, **{"join-later": True})
    leaving = {2: lambda: Ejections(federation.out).remove("bert", "left\nthe study")}
    federation.serve(grid=federation.growing(does=lambda t: leaving.pop(t, lambda: None)()))
    [left] = federation.events("left")
    assert (left["client"], left["t"], left["clients"], left["reason"]) == ("bert", 3, 3, "left\\x0athe study")
    assert federation.events("round")[-1]["counted"] == ["adam", "anna", "carl"]
    states = FederationDirectory(federation.out).states
    before, after = (checkpoint.load(states[t])[0]["server.h"] for t in (3, 4))
    folders = {path.name: path for path in federation.folder.glob("state/*/*")}
    moves = [
        load_file(folders[name] / "round-00000003.safetensors")["h"]
        - load_file(folders[name] / "round-00000002.safetensors")["h"]
        for name in ("adam", "anna", "carl")
    ]
    torch.testing.assert_close(after - before, torch.stack(moves).mean(0), rtol=0, atol=1e-12)
    members = Membership.load(states[4])
    assert (members.left, list(members.members)) == ({"bert"}, ["anna", "bert", "carl", "adam"])
    for line, error in {
        "remove out bert": "bert is no member: members are those that the federation began with, and those that have "
        "joined (adam, anna, carl)",
        "admit out bert": "bert is no member",
    }.items():
        code, _, words = fedflat(f"flower {line}")
        assert code == 2
        assert error in words
    assert fedflat("flower remove out carl --reason moved") == (0, "carl leaves for good from the next round on\n", "")
    assert "carl has left for good" in fedflat("flower admit out carl")[2]
    assert {name: problem for name, problem in check(federation.out) if problem} == {}
    assert "bert (left)" in fedflat("report out")[1]


def test_who_has_left_does_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedflat.federation.flower.transport.RETRY_SECONDS", 0.0)
    federation = GrowingFederation(growing_study(), tmp_path / "federation", **{"join-later": True})
    gone = {1: lambda: Ejections(federation.out).remove("bert")}
    federation.serve(grid=federation.growing(comes=9, does=lambda t: gone.pop(t, lambda: None)()))
    assert federation.events("round")[-1]["counted"] == ["anna", "carl"]
    assert "bert: has left this federation for good" in {event["reason"] for event in federation.events("node refused")}


def test_a_secure_sum_grows(tmp_path: Path) -> None:
    """Its model is that of a federation without masks."""
    models = []
    for comes, secure in ((0, {}), (1, {"secure-sum": 0.7, "norm-multiple": float("inf")})):
        federation = GrowingFederation(growing_study(), tmp_path / str(comes), **{"join-later": True}, **secure)
        models.append(federation.serve(grid=federation.growing(comes)))
        assert [len(event["counted"]) for event in federation.events("round")] == [3, 3, 4, 4]
    assert models[0] == models[1]


def test_settings_that_contradict_each_other_are_refused() -> None:
    for settings, line in (
        ({"members": MEMBERS, "clients": 4}, "members names 3 clients, and clients is 4: too few are named"),
        ({"members": MEMBERS, "clients": 3, "join-later": True}, "join-later is for clients that nobody lists"),
    ):
        with failing(InputError, line):
            RunSettings.parse("run-config", settings)

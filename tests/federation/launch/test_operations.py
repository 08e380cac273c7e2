"""A real network whose nodes run one app only, and one of which loses its key and gets another."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import tomli_w

from fedflat.experiments.spec import RunSpec, federated_data
from fedflat.federation.flower.approved_apps import app_digest
from fedflat.federation.flower.directory import check
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch.certificates import Certificates
from fedflat.federation.launch.local_federation import CONNECTION, HOST, LocalFederation
from fedflat.federation.membership import FederationError
from support.effort import in_test_all
from support.flower_fixtures import events_of, wait_for
from support.studies import run_spec

pytestmark = [
    in_test_all,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc"),
]
NAMES = ("client-0", "client-1")
LIMIT = 300.0  # seconds; machines are busy
ROUNDS = 12


def study() -> RunSpec:
    """Twelve rounds, with state at clients."""
    return run_spec(method="scaffold", data={"name": "digits", "clients": 2}, participation=1.0, rounds=ROUNDS,
                    executor="sequential", flatness=[])  # fmt: skip


def exported(folder: Path, name: str, wait: float) -> Path:
    settings = {"clients": 2, "out": str(folder / name), "wait": wait, "deadline": LIMIT}
    export(study(), RunSettings(**settings, registry=str(folder / "members.toml")), folder / f"{name}-app")
    return folder / f"{name}-app"


def write_registry(folder: Path, keys: Certificates) -> None:
    """The operator's file of members, with the keys that they have now."""
    sizes = federated_data(study()).counts().sum(axis=1)
    lines = [keys.node_key(name).with_name(f"{name}.pub").read_text().strip() for name in NAMES]
    members = zip(NAMES, sizes, lines, strict=True)
    table = {name: {"samples": int(size), "keys": [line]} for name, size, line in members}
    (folder / "members.toml").write_text(tomli_w.dumps(table))


def node_of(out: Path, name: str) -> str:
    """The id of the node at which a client was registered last; Flower's own list has no names."""
    return [event["node"] for event in events_of(out, "client") if event["client"] == name][-1]


def register(federation: LocalFederation, key: Path, name: str) -> str:
    """Register a public key with a client's name; what Flower says to that."""
    return federation.processes.run("flwr", "supernode", "register", f"{key}.pub", CONNECTION, "--name", name,
                                    "--format", "json")  # fmt: skip


def test_another_app_does_not_run_and_a_revoked_key_is_replaced(tmp_path: Path) -> None:
    approved, changed = exported(tmp_path, "approved", LIMIT), exported(tmp_path, "changed", 25.0)
    with (changed / "federated" / "client.py").open("a") as file:
        file.write(f"\nPath({str(tmp_path / 'seen')!r}).write_text('this code has run')\n")
    nodes = {name: {"partition-id": i, "state": str(tmp_path / "state")} for i, name in enumerate(NAMES)}
    certificates = Certificates(tmp_path / "flower" / "certificates")
    certificates.make([HOST], NAMES)
    write_registry(tmp_path, certificates)
    digests = [app_digest(approved), app_digest(changed)]
    with LocalFederation(tmp_path / "flower", nodes, approved=lambda: digests, at_nodes=digests[:1]) as federation:
        with pytest.raises(FederationError, match="0 of 2 clients came within 25 seconds"):
            list(federation.events(federation.submit(changed, tmp_path / "changed"), LIMIT))
        reasons = {event["reason"] for event in events_of(tmp_path / "changed", "node refused")}
        assert reasons == {f"this node was sent the app {app_digest(changed)}, and runs only {app_digest(approved)}"}
        assert not (tmp_path / "seen").exists()
        out = tmp_path / "approved"
        federation.submit(approved, out)
        wait_for("two rounds", lambda: len(events_of(out, "round")) >= 2)
        revoke_and_replace(federation, out)
        wait_for("the end", lambda: events_of(out, "finished") or events_of(out, "failed"))
    assert [event["missing"] for event in events_of(out, "round")][-1] == {}
    samples = {event["samples"] for event in events_of(out, "client") if event["client"] == "client-1"}
    assert len(samples) == 1
    assert json.loads((out / "result.json").read_text())["clients"] == list(NAMES)
    assert {name: problem for name, problem in check(out) if problem} == {}


def revoke_and_replace(federation: LocalFederation, out: Path) -> None:
    """Client 1's key is revoked while rounds go on; only a new key, registered with the same name, lets it back in."""
    programs, key = federation.processes, federation.folder / "certificates" / "nodes" / "client-1"
    programs.run("flwr", "supernode", "unregister", node_of(out, "client-1"), CONNECTION)
    wait_for("the end of the node", lambda: not programs.is_running("client-1"), 90)
    programs.kill("client-1")
    federation.start_node("client-1")
    wait_for("the end of a node with the revoked key", lambda: not programs.is_running("client-1"), 90)
    programs.kill("client-1")
    assert "already in use" in register(federation, key, "client-1")
    wait_for("a round without it", lambda: any(event["missing"] for event in events_of(out, "round")))
    assert {name for event in events_of(out, "round") for name in event["missing"]} == {"client-1"}
    before = len(events_of(out, "client"))
    for file in (key, key.with_name("client-1.pub")):
        file.rename(file.with_name(f"{file.name}.old"))
    federation.certificates.make([], ["client-1"])
    write_registry(out.parent, federation.certificates)
    assert "already in use" not in register(federation, key, "client-1")
    federation.start_node("client-1")
    wait_for("its return", lambda: len(events_of(out, "client")) > before)
    assert events_of(out, "client")[-1]["client"] == "client-1"

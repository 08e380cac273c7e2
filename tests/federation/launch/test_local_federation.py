"""A real network: SuperLink, SuperExec and SuperNodes with TLS and keys, on the loopback."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from fedflat.experiments import runner
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.approved_apps import app_digest
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch.local_federation import LocalFederation
from support.effort import in_test_all
from support.flower_fixtures import events_of
from support.network_monitor import external_contacts, monitor_network
from support.studies import run_spec

# No state at clients; and all of it: state at clients, an additional vector down, and two up. Every method runs on the
# in-process grid (test_server_app.py), whose messages are encoded in the same way.
METHODS = ("fedavg", "scaffold", "feddyn", "mofedsam")
CLIENTS = 2
LIMIT = 500.0  # seconds for all of it; machines are busy


def study_of(method: str) -> RunSpec:
    data, partition = {"name": "digits", "clients": CLIENTS}, {"name": "dirichlet", "alpha": 0.5}
    return run_spec(method=method, data=data, partition=partition, participation=1.0, rounds=2,
                    executor="sequential", flatness=[])  # fmt: skip


def exported(method: str, folder: Path) -> Path:
    settings = RunSettings(clients=CLIENTS, out=str(folder / method / "out"), wait=LIMIT, deadline=LIMIT)
    export(study_of(method), settings, folder / method / "app")
    return folder / method / "app"


def nodes(folder: Path) -> dict[str, dict[str, object]]:
    return {f"client-{i}": {"partition-id": i, "state": str(folder / "state")} for i in range(CLIENTS)}


@in_test_all
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc")
def test_every_kind_of_method_leaves_the_file_of_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several runs at once, during which the SuperLink is killed and started again.

    `make test` has one real network, in `test_local_deployment.py`; it is not killed, and does all the rest.
    Afterwards no process is running, no port is in use, and no process has contacted another host.
    """
    site, log = monitor_network(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (site, os.environ.get("PYTHONPATH")))))
    apps = {method: exported(method, tmp_path) for method in METHODS}
    digests = [app_digest(app) for app in apps.values()]
    with LocalFederation(tmp_path / "flower", nodes(tmp_path), approved=lambda: digests) as federation:
        runs = [federation.submit(app, tmp_path / method / "out") for method, app in apps.items()]
        for event in federation.events(runs[0], LIMIT):
            if event["event"] == "begun":
                federation.processes.kill("superlink")
                federation.start_superlink()
        for run in runs[1:]:
            assert list(federation.events(run, LIMIT))[-1]["event"] == "finished"
    for method in METHODS:
        runner.run(study_of(method), tmp_path / method / "simulation")
        models = [tmp_path / method / where / "model.safetensors" for where in ("simulation", "out")]
        assert models[0].read_bytes() == models[1].read_bytes(), method
        rounds = events_of(tmp_path / method / "out", "round")
        assert [(event["t"], event["missing"]) for event in rounds] == [(0, {}), (1, {})]
    assert federation.processes.remaining() == []
    socket.create_server(("127.0.0.1", federation.port)).close()  # nobody listens there
    assert "flwr-serverapp" in log.read_text()
    assert external_contacts(log) == []


def test_only_its_own_database_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "flower"
    folder.mkdir()
    for name in ("superlink.db", "superlink.db-wal", "superlink.db.mine", "superlink.db-backup"):
        (folder / name).touch()
    federation = LocalFederation(folder, {}, secure=False, approved=list)
    federation.processes.prepare()
    try:
        federation.configure()
    finally:
        federation.processes.stop()
    assert sorted(path.name for path in folder.glob("superlink*")) == ["superlink.db-backup", "superlink.db.mine"]

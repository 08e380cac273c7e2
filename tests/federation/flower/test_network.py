"""A real network: SuperLink, SuperExec and three SuperNodes with TLS and keys, on the loopback."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from fedflat.experiments import runner
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower import event_log
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch.local_federation import LocalFederation
from support.network_monitor import outside, watch
from support.studies import run_spec

KINDS = {
    "stateless": "fedavg",
    "records at clients": "feddyn",
    "a vector down": "mofedsam",
    "two vectors up": "scaffold",
}
CLIENTS = 3
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


@pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc")
def test_every_kind_of_method_leaves_the_file_of_the_simulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four runs at once, with the SuperLink killed and started again between them and their ends; afterwards no process
    is left, no port is taken, and nothing was ever said to anybody outside."""
    place, notes = watch(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (place, os.environ.get("PYTHONPATH")))))
    with LocalFederation(tmp_path / "flower", nodes(tmp_path)) as federation:
        runs = [federation.submit(exported(one, tmp_path), tmp_path / one / "out") for one in KINDS.values()]
        for event in federation.events(runs[0], LIMIT):
            if event["event"] == "begun":
                federation.processes.kill("superlink")
                federation.start_link()
        for run in runs[1:]:
            assert list(federation.events(run, LIMIT))[-1]["event"] == "finished"
    for kind, method in KINDS.items():
        runner.run(study_of(method), tmp_path / method / "simulation")
        models = [tmp_path / method / where / "model.safetensors" for where in ("simulation", "out")]
        assert models[0].read_bytes() == models[1].read_bytes(), kind
        rounds = [event for event in event_log.read(tmp_path / method / "out") if event["event"] == "round"]
        assert [(event["t"], event["missing"]) for event in rounds] == [(0, {}), (1, {})]
    assert federation.processes.left() == []
    with socket.socket() as free:
        free.bind(("127.0.0.1", federation.port))
    assert "flwr-serverapp" in notes.read_text()
    assert outside(notes) == []

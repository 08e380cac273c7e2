"""The audit of private rounds over a network, here on the in-process grid: what canaries show is what is stated."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.network_audit import CANARIES, NOISE, Audit, exported, node_configs, shown, study
from fedflat.federation.flower import server_app, transport
from fedflat.federation.flower.event_log import read_events
from fedflat.federation.flower.study import Study
from support.local_grid import LocalGrid, Node

ROUNDS = 40


def app_in(folder: Path) -> Any:
    """Import the client app in an exported folder, as a process of a node does."""
    spec = importlib.util.spec_from_file_location("canary", folder / "federated" / "client.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["canary"] = module
    spec.loader.exec_module(module)
    return module.app


def trials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """Return the trials of a federation on the in-process grid."""
    monkeypatch.setattr(transport, "POLL_SECONDS", 0.001)
    run = exported(study(ROUNDS), folder, wait=5.0, deadline=60.0)
    app, audit, found = app_in(folder / "app"), Audit(folder), []
    log = server_app.EventLog.append

    def append(self: Any, event: str, **facts: Any) -> Any:
        logged = log(self, event, **facts)
        if event == "round":
            *_, last = read_events(folder / "out")
            found.extend(audit.trials(last))
        return logged

    monkeypatch.setattr(server_app.EventLog, "append", append)
    nodes = {i: Node(app, config) for i, config in enumerate(node_configs(folder).values(), start=1)}
    server_app.serve(
        Study.load(folder / "app", run), LocalGrid(nodes, run.model_dump(by_alias=True, exclude_none=True))
    )
    return found


def test_canaries_show_one_clip_and_the_stated_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """About half of all replies are missing, and no round is divided by the number of replies."""
    pytest.importorskip("dp_accounting")
    found = trials(tmp_path, monkeypatch)
    assert len(found) > 0.8 * CANARIES * (ROUNDS - 1)
    result = shown({"trials": found, "delta": 1e-3, "noise": NOISE}, confidence=0.9999)
    assert 0.3 < result["vanished"] / result["trials"] < 0.7
    assert result["shift"][1] < 1 < result["shift"][2]
    assert result["noise"][1] < NOISE < result["noise"][2]
    assert result["proved"] <= result["stated"]

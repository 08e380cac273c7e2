"""A real federation over a network that splits, stalls, half-closes and cuts its connections."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Self

import pytest

from fedflat.experiments import runner
from fedflat.federation.flower.approved_apps import app_digest
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch.local_federation import LocalFederation
from support.effort import in_test_all
from support.flower_fixtures import events_of
from support.studies import run_spec
from support.unreliable_proxy import UnreliableProxy

LIMIT = 400.0  # seconds; machines are busy
CLIENTS, ROUNDS = 2, 2


class UnreliableFederation(LocalFederation):
    """Its nodes reach the SuperLink through a proxy, and are started again when they end, as their units do.

    Flower's SuperNode ends, with code 305, when a connection is cut within the handshake of TLS.
    """

    proxy: UnreliableProxy
    restarts = 0

    def __enter__(self) -> Self:
        start, direct = self.processes.start, f"127.0.0.1:{self.port}"

        def started(name: str, program: str, *words: str) -> None:
            through = name in self._nodes
            start(name, program, *(self.proxy.address if through and word == direct else word for word in words))

        self.processes.start, self.processes.check = started, self.restart_nodes  # type: ignore[method-assign]
        return super().__enter__()

    def restart_nodes(self) -> None:
        for name in self._nodes:
            if name in self.processes._running and not self.processes.is_running(name):
                del self.processes._running[name]
                self.start_node(name)
                self.restarts += 1


@in_test_all
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes and their environments are read from /proc")
@pytest.mark.parametrize("seed", range(int(os.environ.get("FEDFLAT_PROXY_SEEDS", "2"))))
def test_a_network_that_cuts_and_stalls_changes_no_bit(seed: int, tmp_path: Path) -> None:
    """Nodes keep records, so that a message that came twice, or a reply that was lost, would show."""
    spec = run_spec(method="scaffold", data={"name": "digits", "clients": CLIENTS}, participation=1.0, rounds=ROUNDS,
                    executor="sequential", flatness=[])  # fmt: skip
    out = tmp_path / "out"
    export(spec, RunSettings(clients=CLIENTS, out=str(out), wait=LIMIT, deadline=LIMIT), tmp_path / "app")
    nodes = {f"client-{i}": {"partition-id": i, "state": str(tmp_path / "state")} for i in range(CLIENTS)}
    federation = UnreliableFederation(tmp_path / "flower", nodes, approved=lambda: [app_digest(tmp_path / "app")])
    federation.proxy = UnreliableProxy(federation.port, seed)
    with federation.proxy.running(), federation:
        run = federation.submit(tmp_path / "app", out)
        assert list(federation.events(run, LIMIT))[-1]["event"] == "finished"
    done = federation.proxy.done
    print(dict(done), federation.proxy.connections, federation.restarts)
    assert sum(done.values()) >= 6, done
    assert done["cut"] + done["stalled and cut"] >= 3, done
    assert [event["missing"] for event in events_of(out, "round")] == [{}] * ROUNDS
    runner.run(spec, tmp_path / "simulation")
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "simulation" / "model.safetensors").read_bytes()

"""A federation over two machines, connected by one cable: TLS, keys, and the simulator's bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import pytest
import tomli_w

from fedflat.experiments import runner
from fedflat.federation.flower.approved_apps import app_digest
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch.certificates import Certificates
from fedflat.federation.launch.processes import OFFLINE
from fedflat.files import write_atomically
from support.effort import in_test_all
from support.flower_fixtures import events_of, wait_for
from support.studies import run_spec
from support.two_machines import Machine, two_machines

pytestmark = [in_test_all, pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")]


LIMIT = 300.0  # seconds; machines are busy
PORT = "18443"
CLIENTS = ("client-0", "client-1")


class Programs:
    """Flower's programs on the machines of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._running = folder, []

    def variables(self, machine: Machine) -> dict[str, str]:
        home = self._folder / f"home-{machine.name}"
        home.mkdir(exist_ok=True)
        return {**os.environ, **OFFLINE, "FLWR_HOME": str(home), "no_proxy": "*",
                "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}  # fmt: skip

    def start(self, machine: Machine, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running.append(subprocess.Popen(
                ["ip", "netns", "exec", machine.name, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.variables(machine), start_new_session=True,
            ))  # fmt: skip

    def call(self, machine: Machine, *command: str) -> str:
        done = subprocess.run(
            ["ip", "netns", "exec", machine.name, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env=self.variables(machine), timeout=LIMIT, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def stop(self) -> None:
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def programs(folder: Path) -> Iterator[Programs]:
    running = Programs(folder)
    try:
        yield running
    finally:
        running.stop()


def test_a_federation_over_two_machines_ends_with_the_bits_of_the_simulator(tmp_path: Path) -> None:
    """The server and a client on one, the other client on the second. A node without a registered key is refused."""
    spec = run_spec(method="scaffold", data={"name": "digits", "clients": 2}, participation=1.0, rounds=2,
                    executor="sequential", flatness=[])  # fmt: skip
    keys, out = Certificates(tmp_path / "keys"), tmp_path / "out"
    export(spec, RunSettings(clients=2, out=str(out), wait=LIMIT, deadline=LIMIT), tmp_path / "app")
    with two_machines() as (here, there), programs(tmp_path) as running:
        keys.make([here.address], [*CLIENTS, "stranger"])
        address, ca = f"{here.address}:{PORT}", str(keys.authority)
        secrets = {name: tmp_path / f"{name}.secret" for name in ("control", "superexec")}
        for path in secrets.values():
            write_atomically(path, lambda path: path.write_text(token_hex(32)), private=True)
        secret = ("--superexec-auth-secret-file", str(secrets["superexec"]))
        pinned = ("--app-digest", app_digest(tmp_path / "app"))
        running.start(here, "superlink", "fedflat", "flower", "superlink", "--control-secret-file",
                      str(secrets["control"]), "--host", here.address, "--port", PORT, "--ssl-certfile",
                      str(keys.server), "--ssl-keyfile", str(keys.server_key), "--ssl-ca-certfile", ca, "--isolation",
                      "process", *secret, "--enable-supernode-auth", "--database",
                      str(tmp_path / "link.db"))  # fmt: skip
        running.start(here, "superexec", "fedflat", "flower", "superexec", *pinned, "--runtime-api-address", address,
                      "--root-certificates", ca, *secret)  # fmt: skip
        link = {"superlink": {"default": "x", "x": {"address": address, "root-certificates": ca}}}
        (Path(running.variables(here)["FLWR_HOME"]) / "config.toml").write_text(tomli_w.dumps(link))
        running.call(here, "fedflat", "flower", "login", address, "--control-secret-file", str(secrets["control"]))
        for name in CLIENTS:
            register = ("flwr", "supernode", "register", str(keys.node_key(name)) + ".pub", "x", "--name", name)
            wait_for(f"the key of {name}", lambda command=register: "uccess" in running.call(here, *command))
        for i, name in enumerate((*CLIENTS, "stranger")):
            running.start(here if i == 0 else there, name, "fedflat", "flower", "node", *pinned, "--superlink", address,
                          "--root-certificates", ca, "--auth-supernode-private-key", str(keys.node_key(name)),
                          "--port", str(18500 + i), "--node-config",
                          f'partition-id={i % 2} state="{tmp_path / f"state-{i}"}"')  # fmt: skip
        assert json.loads(running.call(here, "flwr", "run", str(tmp_path / "app"), "x", "--format", "json"))["success"]
        wait_for("the end", lambda: events_of(out, "finished") or events_of(out, "failed"))
    runner.run(spec, tmp_path / "simulation")
    models = [(folder / "model.safetensors").read_bytes() for folder in (out, tmp_path / "simulation")]
    assert models[0] == models[1]
    assert [event["client"] for event in events_of(out, "client")].count("client-0") == 1
    assert "Failed to activate SuperNode" in (tmp_path / "stranger.log").read_text()
    assert not events_of(out, "node refused"), "the SuperLink refuses it, not the server app"

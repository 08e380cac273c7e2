"""Measures seconds of a round beside those of plain Flower on the same machine, in turns.

python -m benchmarks.federation_beside_flower --out docs/federation.json

Plain Flower: `flower-superlink` and `flower-supernode`, with TLS and keys, run the app in benchmarks/plain_flower. Its
clients import torch and return the vector that they receive, with noise; they do not train. Clients of fedflat take one
step of FedAvg on 20 samples. The table is in docs/operate.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from benchmarks.federation import LIMIT, parameters_of, printed, seconds_of, submitted
from benchmarks.results import machine
from fedflat.experiments.spec import RunSpec
from fedflat.federation.launch.local_federation import CONNECTION, HOST, LocalFederation
from fedflat.federation.membership import FederationError

APP = Path(__file__).parent / "plain_flower"
SIZES: dict[str, list[int]] = {"nothing": [], "1.1M": [1024, 1000], "11M": [3300, 3250]}  # hidden layers
CLIENTS = (3, 10)
NO_APP = "sha256:" + 64 * "0"  # plain Flower starts any app


def main() -> None:
    """Measure, and write the results into the file of federations."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=4, help="of each run; the first is not counted")
    arguments.add_argument("--turns", type=int, default=2, help="runs of each side, in turns")
    arguments.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    arguments.add_argument("--clients", nargs="+", type=int, default=list(CLIENTS))
    arguments.add_argument("--out", type=Path, required=True, help="JSON file; cases that are not measured stay in it")
    given = arguments.parse_args()
    for clients, size in product(given.clients, given.sizes):
        found = beside(size, clients, given.rounds, given.turns)
        content = json.loads(given.out.read_text()) if given.out.exists() else {}
        content.setdefault("beside", {})[f"{size}, {clients} clients"] = found | {"machine": machine()}
        given.out.write_text(json.dumps(content, indent=1) + "\n")


def beside(size: str, clients: int, rounds: int, turns: int) -> dict[str, Any]:
    """Measure both sides in turns: seconds of every round but the first of each run, and the load before each turn."""
    seconds: dict[str, list[list[float]]] = {"flower": [], "fedflat": []}
    load = []
    for _ in range(turns):
        load.append(os.getloadavg()[0])
        for side, run in (("flower", plain_rounds), ("fedflat", our_rounds)):
            seconds[side].append(run(SIZES[size], clients, rounds))
            print(size, clients, side, [round(second, 1) for second in seconds[side][-1]], file=sys.stderr)
    return {"size": size, "clients": clients, "parameters": parameters_of(SIZES[size]), "load": load, **seconds}


def our_rounds(hidden: list[int], clients: int, rounds: int) -> list[float]:
    """Return seconds of the rounds of FedAvg after the first, with one step of each client."""
    spec = RunSpec(
        data={"name": "digits", "clients": clients}, model={"name": "mlp", "options": {"hidden": hidden}},
        client={"lr": 0.05, "steps": 1, "batch_size": 20}, method="fedavg", participation=1.0, rounds=rounds,
        executor="sequential", flatness=[], eval_every=rounds,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, submitted(Path(folder), spec, secure=True) as (_, events):
        return _differences([seconds_of(event) for event in printed(events) if event["event"] == "round"])


def plain_rounds(hidden: list[int], clients: int, rounds: int) -> list[float]:
    """Return seconds of the rounds of the plain app after the first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        times = path / "times"
        nodes: dict[str, dict[str, Any]] = {f"client-{i}": {} for i in range(clients)}
        config = f'clients={clients} parameters={parameters_of(hidden)} rounds={rounds} times="{times}"'
        with PlainFederation(path / "flower", nodes, approved=lambda: [NO_APP]) as federation:
            federation.processes.run("flwr", "run", str(APP), CONNECTION, "--run-config", config)
            end = monotonic() + LIMIT
            while len(lines := times.read_text().split() if times.exists() else []) <= rounds:
                federation.processes.check()
                if monotonic() > end:
                    raise FederationError(f"the plain run was not over after {LIMIT:g} seconds")
                sleep(0.1)
    return _differences([float(line) for line in lines[1:]])  # the first is written before the first round


class PlainFederation(LocalFederation):
    """The same machines and keys with Flower's own programs, which start their SuperExecs themselves."""

    def start_superlink(self) -> None:
        """Start Flower's SuperLink with its defaults, and wait until it is ready."""
        keys = self.certificates
        self.processes.start(
            "superlink", "flower-superlink", "--host", HOST, "--port", str(self.port), "--enable-supernode-auth",
            "--ssl-certfile", str(keys.server), "--ssl-keyfile", str(keys.server_key), "--ssl-ca-certfile",
            str(keys.authority),
        )  # fmt: skip
        self.wait_for_superlink()

    def start_superexec(self, approved: Sequence[str]) -> None:
        """Do nothing: the SuperLink starts it."""

    def start_node(self, name: str) -> None:
        """Start Flower's SuperNode with its defaults."""
        self.processes.start(
            name, "flower-supernode", "--superlink", f"{HOST}:{self.port}", "--host", HOST,
            "--port", str(self.port_of(name)), "--root-certificates", str(self.certificates.authority),
            "--auth-supernode-private-key", str(self.certificates.node_key(name)),
        )  # fmt: skip


def _differences(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


if __name__ == "__main__":
    try:
        main()
    except FederationError as error:
        sys.exit(f"benchmarks/federation_beside_flower.py: {error}")

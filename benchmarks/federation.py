"""Measures a real federation: seconds of rounds over Flower with TLS and keys on the loopback, and killed programs.

python -m benchmarks.federation --rounds 8 --out docs/federation.json

SuperLink, SuperExec and three SuperNodes, all on this machine, which should have nothing else to do. The tables are in
docs/operate.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from benchmarks.results import machine
from fedflat.experiments import runner
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.approved_apps import app_digest
from fedflat.federation.flower.event_log import read_events
from fedflat.federation.flower.export import export
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.launch.local_federation import LocalFederation
from fedflat.federation.membership import FederationError

CLIENTS = 3
SIZES = {"small": [32], "1.1M": [1024, 1000], "11M": [3300, 3250]}  # hidden layers
DEADLINE = 150.0  # seconds, more than a node with a key needs to come back
RESTART = 15.0  # seconds after which a supervisor starts a program again
LIMIT = 1800.0  # seconds for one run


def main() -> None:
    """Measure, and write the results."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=8, help="of each run, at least 6")
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="the others stay as --out has them")
    arguments.add_argument("--out", type=Path, help="JSON file for the results")
    given = arguments.parse_args()
    content = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    content |= {"machine": machine()} | {part: PARTS[part](given.rounds) for part in given.parts}
    text = json.dumps(content, indent=1) + "\n"
    given.out.write_text(text) if given.out else print(text)


def all_rounds(rounds: int) -> dict[str, Any]:
    """Return seconds of rounds, for models of several sizes."""
    return {name: timed(hidden, rounds) for name, hidden in SIZES.items()}


def all_kills(rounds: int) -> dict[str, Any]:
    """Return the effects of killing a program during a run."""
    kills = {"SuperLink": kill_superlink, "SuperNode, no keys": kill_node, "SuperNode with a key": kill_node}
    return {name: killed(kill, rounds, secure="no keys" not in name) for name, kill in kills.items()}


def spec_of(hidden: list[int], rounds: int) -> RunSpec:
    """Return a run of Scaffold: a vector at the server, one at each client, and two sent in each direction."""
    return RunSpec(
        data={"name": "digits", "clients": CLIENTS}, model={"name": "mlp", "options": {"hidden": hidden}},
        client={"lr": 0.05, "steps": 2, "batch_size": 20}, method="scaffold", participation=1.0, rounds=rounds,
        executor="sequential", flatness=[], eval_every=rounds,
    )  # fmt: skip


def timed(hidden: list[int], rounds: int, **settings: Any) -> dict[str, Any]:
    """Return seconds of the rounds after the first, with some of the run's settings changed."""
    spec = spec_of(hidden, rounds)
    with tempfile.TemporaryDirectory() as place, submitted(Path(place), spec, True, **settings) as (_, events):
        times = [seconds_of(event) for event in printed(events) if event["event"] == "round"]
    return {"parameters": parameters_of(hidden), "seconds": [after - before for before, after in pairwise(times)]}


def parameters_of(hidden: list[int]) -> int:
    """Return the number of parameters of a perceptron for digits."""
    return sum((before + 1) * after for before, after in pairwise([64, *hidden, 10]))


def killed(kill: Callable[[LocalFederation, threading.Event], None], rounds: int, secure: bool) -> dict[str, Any]:
    """Kill a program in the third round of a run: how the run goes on, and whether the model is the simulator's."""
    spec, over = spec_of(SIZES["small"], rounds), threading.Event()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with submitted(folder, spec, secure) as (federation, events):
            for event in printed(events):
                if event["event"] == "round" and event["t"] == 1:
                    sleep(3)  # the requests are sent
                    kill(federation, over)
            over.set()
        runner.run(spec, folder / "simulation")
        models = [(folder / where / "model.safetensors").read_bytes() for where in ("out", "simulation")]
        return {"asked": rounds, "equal": models[0] == models[1], **summary(list(read_events(folder / "out")))}


def summary(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rounds of a run: how long they took, and which clients were missing."""
    rounds = [event for event in events if event["event"] == "round"]
    times = [seconds_of(event) for event in rounds]
    seconds = [after - before for before, after in pairwise(times)]
    return {
        "rounds": len({event["t"] for event in rounds}),
        "repeated": len(rounds) - len({event["t"] for event in rounds}),
        "usual_seconds": median(seconds),
        "longest_seconds": max(seconds),
        "missing": {str(event["t"]): event["missing"] for event in rounds if event["missing"]},
    }


def kill_superlink(federation: LocalFederation, over: threading.Event) -> None:
    """Kill the SuperLink, and start it again."""
    federation.processes.kill("superlink")
    sleep(RESTART)
    federation.start_superlink()


def kill_node(federation: LocalFederation, over: threading.Event) -> None:
    """Kill a SuperNode, and start it again, repeatedly if it is refused, as a supervisor would."""
    federation.processes.kill("client-1")
    threading.Thread(target=supervise, args=(federation, "client-1", over), daemon=True).start()


def supervise(federation: LocalFederation, name: str, over: threading.Event) -> None:
    """Start a SuperNode whenever it has ended, until the run is over; it ends with this thread."""
    while not over.wait(RESTART):
        if not federation.processes.is_running(name):
            federation.start_node(name)


@contextmanager
def submitted(
    folder: Path, spec: RunSpec, secure: bool, **settings: Any
) -> Iterator[tuple[LocalFederation, Iterator[dict[str, Any]]]]:
    """Submit a run of `spec` to a federation, and give its folders and the events of the run."""
    out = folder / "out"
    clients = spec.data.clients
    export(spec, RunSettings(clients=clients, out=str(out), deadline=DEADLINE, **settings), folder / "app")
    nodes = {f"client-{i}": {"partition-id": i, "state": str(folder / "state")} for i in range(clients)}
    with LocalFederation(folder / "flower", nodes, secure, approved=lambda: [app_digest(folder / "app")]) as federation:
        federation.submit(folder / "app", out)
        yield federation, follow(out)


def printed(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events, each one printed as it arrives."""
    for event in events:
        print(json.dumps(event), file=sys.stderr)
        yield event


def follow(out: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run as they happen, even if programs of the federation end meanwhile."""
    seen, end = 0, monotonic() + LIMIT
    while monotonic() < end:
        for event in list(read_events(out))[seen:]:
            seen += 1
            yield event
            if event["event"] in ("finished", "failed"):
                return
        sleep(0.1)
    raise FederationError(f"the run was not over after {LIMIT:g} seconds")


def seconds_of(event: dict[str, Any]) -> float:
    """Return the time of an event."""
    return datetime.fromisoformat(event["time"]).timestamp()


PARTS = {"rounds": all_rounds, "kills": all_kills}


if __name__ == "__main__":
    try:
        main()
    except FederationError as error:
        sys.exit(f"benchmarks/federation.py: {error}")

"""What rounds of FedAvg cost in Flower's simulation, which runs in processes of Ray on this machine.

    python benchmarks/peers/flower.py [--workloads W1 W2 W3 W5] [--workers 2] [--repeats 5] [--out FILE.json]

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
from collections.abc import Iterable
from typing import Any

from results import Result, Run, installed, parser, report
from tasks import vector
from timing import Laps, family_time
from torch import nn

PEER = "Flower"
LOADED = "torch's DataLoader on tensors in memory, shuffled, the last batch partial; no augmentation, no evaluation"
MOST = 100  # clients that train in a round where --clients is not given: more cost Flower more, each of them
LIMIT = 1800  # seconds for one work, after which everything is ended
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # nothing is told to anybody outside


def main() -> None:
    """Time the workloads."""
    made = parser(__doc__ or "")
    made.add_argument("--workers", type=int, default=2, help="processes that train (default 2)")
    asked = made.parse_args()
    version = installed(PEER, "flwr", "flwr[simulation]==1.41.0")
    installed(PEER, "ray", "flwr[simulation]==1.41.0")
    os.environ |= QUIET
    asked.clients = asked.clients or MOST
    report(asked, lambda name: [time(name, version, asked)])


def time(name: str, version: str, asked: argparse.Namespace) -> Result:
    """Return FedAvg on the work `name`."""
    run = Run.of(name, asked)
    module = run.task.build()
    before = vector(module)
    laps = train(name, run, module, asked.workers)
    figures = run.figures(laps, before, vector(module))
    includes = f"{LOADED}; messages between server and {asked.workers} worker processes"
    return Result(peer=PEER, version=version, work=name, method="FedAvg", includes=includes, **figures)


def train(name: str, run: Run, module: nn.Module, workers: int) -> Laps:
    """Return all rounds, timed; `module` holds the server's model afterwards."""
    from flower_client import app
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    laps, server = Laps(family_time), ServerApp()

    @server.main()
    def rounds(grid: Any, context: Any) -> None:
        config = ConfigRecord({"work": name, "threads": run.threads})
        start = ArrayRecord(module.state_dict())
        found = strategy(run, laps).start(grid, start, run.all_rounds, timeout=LIMIT, train_config=config)
        module.load_state_dict(found.arrays.to_torch_state_dict())

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT)
    supernodes = run.task.work.clients * run.task.cohort // run.task.work.cohort
    run_simulation(server, app, supernodes, backend_config=backend(workers))
    signal.alarm(0)
    return laps


def backend(workers: int) -> dict[str, Any]:
    """Return ray on the loopback address, with as many processes as there are `workers`."""
    quiet = {"include_dashboard": False, "log_to_driver": False}
    machine = {"num_cpus": workers, "_node_ip_address": "127.0.0.1"}
    return {"init_args": machine | quiet, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


def give_up(*_: object) -> None:
    """End everything, Ray's processes too."""
    import ray

    ray.shutdown()
    os.write(2, f"{PEER}: no end after {LIMIT} s\n".encode())
    os._exit(1)


def strategy(run: Run, laps: Laps) -> Any:
    """Return FedAvg that marks the ends of rounds and refuses a round in which a client failed."""
    from flwr.serverapp.strategy import FedAvg

    class Timed(FedAvg):
        def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
            arrived = [reply for reply in replies if not reply.has_error()]
            if len(arrived) != run.task.cohort:
                raise RuntimeError(f"{len(arrived)} of {run.task.cohort} clients have answered")
            arrays, metrics = super().aggregate_train(server_round, arrived)
            laps.steps = metrics["steps"] * run.task.cohort
            return arrays, metrics

        def configure_evaluate(self, *_: object, **__: object) -> list[Any]:
            laps.end()
            return []

    share = run.task.work.cohort / run.task.work.clients
    return Timed(fraction_train=share, fraction_evaluate=0.0, min_train_nodes=run.task.cohort)


if __name__ == "__main__":
    main()

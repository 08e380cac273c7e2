"""Measures what a secure sum costs: processor seconds and bytes of its steps, and rounds over Flower's network.

python -m benchmarks.secure_sum --repeats 5 --rounds 8 --out docs/secure_sum.json

A model of 1.1 million parameters whose clients send one vector. The steps are taken in one process, with one thread,
and messages are counted as Flower writes them; nobody trains. The rounds are those of `benchmarks/federation.py`, with
and without. The machine should have nothing else to do. The tables are in docs/secure_sum.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

import torch
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from benchmarks import federation
from benchmarks.results import machine
from fedflat.core.method import Context
from fedflat.federation.flower.records import to_records
from fedflat.federation.membership import FederationError
from fedflat.federation.messages import TrainReply, TrainRequest, pack
from fedflat.federation.secure_sum.aggregator import SecureAggregator
from fedflat.federation.secure_sum.client import SumClient
from fedflat.federation.secure_sum.messages import KeysRequest, MaskRequest, summand
from fedflat.federation.update_aggregator import ExpectedReply, NormBounds, UpdateAggregator
from fedflat.methods import find

PARAMETERS = 1_101_570  # of the model "1.1M" of benchmarks/federation.py
SHARE = 0.6
CASES = {
    "5 clients": (5, 0), "10 clients": (10, 0), "10 clients, 3 drop out": (10, 3), "50 clients": (50, 0),
    "100 clients": (100, 0),
}  # fmt: skip
BOUNDS = NormBounds(inf, 1.0)


def main() -> None:
    """Measure, and write the results."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=5, help="sums of each number of clients")
    arguments.add_argument("--rounds", type=int, default=8, help="of each run over the network, at least 2")
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="the others stay as --out has them")
    arguments.add_argument("--out", type=Path, help="JSON file for the results")
    given = arguments.parse_args()
    content = json.loads(given.out.read_text()) if given.out and given.out.exists() else {}
    content |= {"machine": machine(), "parameters": PARAMETERS}
    numbers = {"sums": given.repeats, "rounds": given.rounds}
    content |= {part: PARTS[part](numbers[part]) for part in given.parts}
    text = json.dumps(content, indent=1) + "\n"
    given.out.write_text(text) if given.out else print(text)


def all_sums(repeats: int) -> dict[str, Any]:
    """Return seconds and bytes of a sum, for several numbers of clients."""
    torch.set_num_threads(1)
    return {name: [one_sum(*case) for _ in range(repeats)] for name, case in CASES.items()}


def all_rounds(rounds: int) -> dict[str, Any]:
    """Return seconds of rounds over the network, with and without."""
    hidden, secure = federation.SIZES["1.1M"], {"secure_sum": 0.7, "norm_multiple": inf}  # all of three
    return {
        "without": federation.timed(hidden, rounds, norm_multiple=inf),
        "with": federation.timed(hidden, rounds, **secure),
    }


def one_sum(clients: int, gone: int) -> dict[str, float]:
    """Return processor seconds of server and client, and bytes of a client with a secure sum and without.

    A client's are means over those that stay.
    """
    method, like = find("FedAvg")(), torch.zeros(PARAMETERS)
    ctx = Context(0, 0.1, 1.0, sampled=clients)
    names = [f"client-{i:03d}" for i in range(clients)]
    expected = dict.fromkeys(names, ExpectedReply(10, 2, 2, 1.0))
    requests = {name: TrainRequest(0, -1, (), i, 1.0, clients, "f" * 16, "study") for i, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as place:
        transport = Clients(Path(place), names, set(names[:gone]), ctx)
        server = SecureAggregator(method, like, ctx, expected, BOUNDS, None, SHARE, 1, "study")
        begin = process_time()
        server.collect(transport, requests, 60.0)
        seconds = process_time() - begin - sum(transport.seconds.values()) - transport.other
    kept = names[gone:]
    return {
        "server_seconds": seconds,
        "client_seconds": sum(transport.seconds[name] for name in kept) / len(kept),
        "sent_bytes": sum(transport.sent[name] for name in kept) / len(kept),
        "received_bytes": sum(transport.received[name] for name in kept) / len(kept),
        "plain_bytes": transport.plain_bytes,
    }


class Clients:
    """All clients in one process, some of which have gone when masked sums are asked for."""

    def __init__(self, folder: Path, names: list[str], gone: set[str], ctx: Context) -> None:
        self._clients = {name: SumClient(folder / name, SHARE, "study") for name in names}
        self._gone, self._ctx, self._folder = gone, ctx, folder
        self.seconds: dict[str, float] = defaultdict(float)
        self.sent: dict[str, int] = defaultdict(int)
        self.received: dict[str, int] = defaultdict(int)
        self.other = 0.0  # seconds of neither server nor clients
        self.plain_bytes = 0

    def exchange(self, requests: Mapping[str, Any], deadline: float) -> Iterator[tuple[str, Any]]:
        """Ask one after another."""
        for name, request in requests.items():
            if name in self._gone and isinstance(request, MaskRequest):
                shutil.rmtree(self._folder / name)
                continue
            begin = process_time()
            # What training left is made here, and is no cost of the sum.
            update = self._update() if isinstance(request, KeysRequest) else None
            trained = process_time()
            reply = self._reply(name, request, update)
            done = process_time()
            self.seconds[name] += done - trained
            self.sent[name] += size(reply)
            self.received[name] += size(request)
            self.other += trained - begin + process_time() - done
            yield name, reply

    def _update(self) -> TrainReply:
        delta = find("FedAvg").up(delta=torch.randn(PARAMETERS) * 0.01)
        reply = TrainReply(0, 10, 2, 2, 1.0, pack(delta))
        self.plain_bytes = size(reply)
        return reply

    def _reply(self, name: str, request: Any, update: TrainReply | None) -> Any:
        if update is None:
            return self._clients[name].answer(request)
        mine = {"": ExpectedReply(10, 2, 2, request.weight)}
        aggregator = UpdateAggregator(find("FedAvg")(), torch.zeros(PARAMETERS), self._ctx, mine, BOUNDS)
        aggregator.add("", update)
        return self._clients[name].begin(request, 10, 2, summand(aggregator.mean, aggregator.metrics()))


def size(message: Any) -> int:
    """Return bytes of a message as Flower writes it."""
    return sum(len(one.deflate()) for one in get_all_nested_objects(to_records(message)).values())


PARTS = {"sums": all_sums, "rounds": all_rounds}


if __name__ == "__main__":
    try:
        main()
    except FederationError as error:
        sys.exit(f"benchmarks/secure_sum.py: {error}")

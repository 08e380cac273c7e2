"""What it costs to keep the records of clients between their rounds, where there are a million of them."""

from __future__ import annotations

import numpy as np
import torch

from fedflat.core.records import Record
from fedflat.engine.client_store import ClientStore
from fedflat.methods import find

from .measurement import Measurement
from .peak_memory import Peak
from .timing import Prepared, in_turns

PART = "store"
CLIENTS = 1_000_000  # in all
POOL = 3000  # that ever take part
COHORT = 1000  # per round
CHUNK = 250  # read at once, then written, as the stacked executor does with a model of this size
PARAMETERS = 7850  # of logistic regression on MNIST


def measure_store(repeats: int) -> list[Measurement]:
    """Return seconds for reading and writing one vector of each client of a round, and the peak of memory.

    To be called in a process of its own.
    """
    peak = Peak()
    method, w = find("Scaffold")(), torch.zeros(PARAMETERS)
    store = ClientStore(method, CLIENTS, w)
    message = method.broadcast(method.init_server(w)).map(lambda x: x.expand(CHUNK, -1))
    random = np.random.default_rng(0)
    places = np.linspace(0, CLIENTS - 1, POOL).astype(np.int64)

    def run() -> None:
        for clients in random.choice(places, COHORT, replace=False).reshape(-1, CHUNK):
            store.stage(clients, changed(store.get(clients, message)))
        store.commit()

    times = in_turns({PART: Prepared(run).time}, repeats)[PART]
    found = peak.bytes()
    store.close()
    facts = {"clients": CLIENTS, "seen": POOL, "cohort": COHORT, "parameters": PARAMETERS}
    cpu, wall = map(list, zip(*times, strict=True))
    return [
        Measurement(PART, "read and write", cpu, wall, facts=facts),
        Measurement(PART, "peak memory", bytes=[] if found is None else [float(found)], facts=facts),
    ]


def changed(records: Record) -> Record:
    """Return what a client would put back: other numbers, in memory of their own."""
    return records.map(lambda x: x + 1)

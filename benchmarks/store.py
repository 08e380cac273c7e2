"""What it costs to keep the records of clients between their rounds: in a slot file, in memory, in a dict of tensors.

    python -m benchmarks.store [--folder FOLDER] [--rounds 30]

1,000 of 1,000,000 clients take part in a round, drawn from 3,000 of them; each keeps one vector of 7,850 float32. A
round reads and writes all of them, 250 at once, as rounds with stacked clients do. Every implementation has a process
of its own. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor

from fedflat.engine.client_store import ClientStore
from fedflat.methods import find

CLIENTS, POOL, COHORT, CHUNK, PARAMETERS = 1_000_000, 3000, 1000, 250, 7850
WARM_UPS = 5  # rounds that are not counted: the file's pages, the allocator, clients seen for the first time
Chunk = Callable[[np.ndarray, np.ndarray], None]  # reads and writes some clients, told who is next


def stored(budget: int, folder: str | None) -> tuple[Chunk, Callable[[], None]]:
    """fedflat's store; what ends a round is its commit."""
    method, w = find("Scaffold")(), torch.zeros(PARAMETERS)
    store, message = ClientStore(method, CLIENTS, w, budget, folder), method.broadcast(method.init_server(w))

    def chunk(clients: np.ndarray, following: np.ndarray) -> None:
        records = store.get(clients, message.map(lambda x: x.expand(len(clients), -1)))
        store.prefetch(following)
        store.stage(clients, records.map(lambda x: x + 1))

    return chunk, store.commit


def dictionary() -> tuple[Chunk, Callable[[], None]]:
    """The usual way: a dict from client to tensor."""
    kept: dict[int, Tensor] = {}
    first = torch.zeros(PARAMETERS)

    def chunk(clients: np.ndarray, following: np.ndarray) -> None:
        records = torch.stack([kept.get(client, first) for client in clients.tolist()]) + 1
        for client, record in zip(clients.tolist(), records, strict=True):
            kept[client] = record.clone()  # a view would keep the whole chunk

    return chunk, lambda: None


def measured(chunk: Chunk, end: Callable[[], None], rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of the processor, all threads, and by the clock, of each round."""
    rng = np.random.default_rng(0)
    pool = np.linspace(0, CLIENTS - 1, POOL).astype(np.int64)
    processor, clock = [], []
    for number in range(rounds + WARM_UPS):
        parts = np.split(rng.choice(pool, COHORT, replace=False), COHORT // CHUNK)
        started = time.process_time(), time.perf_counter()
        for clients, following in zip(parts, [*parts[1:], parts[0][:0]], strict=True):
            chunk(clients, following)
        end()
        if number >= WARM_UPS:
            processor.append(1e3 * (time.process_time() - started[0]))
            clock.append(1e3 * (time.perf_counter() - started[1]))
    return processor, clock


def memory(name: str) -> float:
    """Resident memory in MB: `VmRSS` now, `VmHWM` its peak; NaN where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return float("nan")
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def one(name: str, folder: str | None, rounds: int) -> str:
    """One implementation's row."""
    torch.set_num_threads(1)
    before = memory("VmRSS")
    makers = {"file": lambda: stored(0, folder), "memory": lambda: stored(10**12, None), "dict": dictionary}
    processor, clock = measured(*makers[name](), rounds)
    times = [f"{median(ms):.1f} [{min(ms):.1f}, {max(ms):.1f}]" for ms in (processor, clock)]
    return f"{name:8} {times[0]:>22} {times[1]:>22} {memory('VmHWM') - before:12.0f}"


def main() -> None:
    """Print a row for each implementation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where the slot file is; default: the folder for temporary files")
    parser.add_argument("--rounds", type=int, default=30, help="rounds that are counted")
    parser.add_argument("--only", choices=("file", "memory", "dict"), help="one row, in this process")
    arguments = parser.parse_args()
    if arguments.only:
        print(one(arguments.only, arguments.folder, arguments.rounds))
        return
    print(f"{'':8} {'processor, ms':>22} {'clock, ms':>22} {'peak, MB':>12}", flush=True)
    for name in ("file", "memory", "dict"):
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--only", name], check=True)  # noqa: S603  # ourselves


if __name__ == "__main__":
    main()

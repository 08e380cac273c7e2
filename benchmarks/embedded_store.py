"""Should an embedded store (LMDB) hold round state and clients' records in one transaction? Measured, not assumed.

    pip install lmdb==3.0.0
    python -m benchmarks.embedded_store [--folder FOLDER] [--rounds 20] [--damages 20]

Two ways to keep the same things: 1,000 of 10,000 clients take part in a round, each keeps one vector of 7,850 float32,
the server's state has 1.1 million; all of it is on disk after every round, or every 25 (`--every`). `files` are a slot
file and a checkpoint, `lmdb` is one environment and one transaction from commit to commit, with real commits. Then
what is on disk is damaged, in one place at a time, by a flipped bit or by an early end, and each way is asked for
everything again, in a process of its own. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedflat.engine.client_store import ClientStore
from fedflat.methods import find
from fedflat.rounds import checkpoint

CLIENTS, COHORT, CHUNK, PARAMETERS, STATE = 10_000, 1000, 250, 7850, 1_100_000
WARM_UPS = 3  # rounds that are not counted
FOUND = {0: "right", 3: "wrong, silently", 4: "refused by name"}


class Way(Protocol):
    """A way to keep state and records."""

    def get(self, clients: np.ndarray) -> Tensor:
        """Records (c, PARAMETERS) of `clients`; zeros of those never seen."""

    def put(self, clients: np.ndarray, records: Tensor) -> None:
        """Keep the records (c, PARAMETERS) of `clients` from the next commit on."""

    def end_round(self) -> None:
        """What was put is the clients'; until here a round that fails can be forgotten."""

    def commit(self, t: int, state: Tensor) -> None:
        """Everything is on disk, as of round `t`, when this returns."""


class Files:
    """A slot file and a checkpoint beside it."""

    def __init__(self, folder: Path) -> None:
        method, w = find("Scaffold")(), torch.zeros(PARAMETERS)
        self._folder, self._method = folder, method
        self._store = ClientStore(method, CLIENTS, w, 0, folder)
        self._message = method.broadcast(method.init_server(w))

    def get(self, clients: np.ndarray) -> Tensor:
        record: Any = self._store.get(clients, self._message.map(lambda x: x.expand(len(clients), -1)))
        found: Tensor = record.c
        return found

    def put(self, clients: np.ndarray, records: Tensor) -> None:
        self._store.stage(clients, self._method.client(records))

    def end_round(self) -> None:
        self._store.commit()

    def commit(self, t: int, state: Tensor) -> None:
        kept = {f"clients.{name}": x for name, x in self._store.tensors(self._folder).items()}
        checkpoint.save(self._folder / "state.safetensors", {"w": state, **kept}, {"t": t})
        self._store.saved()

    def restored(self) -> tuple[int, Tensor]:
        """Round and state of what is on disk."""
        tensors, meta = checkpoint.load(self._folder / "state.safetensors")
        kept = {name.removeprefix("clients."): x for name, x in tensors.items() if name.startswith("clients.")}
        self._store.restore(kept, self._folder)
        return meta["t"], tensors["w"]


class Embedded:
    """One LMDB environment: a record under each client's number, the state under `w`, a round in one transaction."""

    def __init__(self, folder: Path) -> None:
        import lmdb  # only this way needs it

        self._environment = lmdb.open(str(folder / "lmdb"), map_size=8 * 2**30, writemap=False, sync=True)
        self._transaction: Any = None  # from commit to commit
        self._round: Any = None  # the transaction of a round, inside the other

    def _open(self) -> Any:
        self._transaction = self._transaction or self._environment.begin(write=True)
        self._round = self._round or self._environment.begin(write=True, parent=self._transaction)
        return self._round

    def get(self, clients: np.ndarray) -> Tensor:
        found, transaction = torch.zeros(len(clients), PARAMETERS), self._open()
        for row, client in zip(found.numpy(), clients.tolist(), strict=True):
            kept = transaction.get(client.to_bytes(8, "big"))
            if kept is not None:
                row[:] = np.frombuffer(kept, np.float32)
        return found

    def put(self, clients: np.ndarray, records: Tensor) -> None:
        transaction = self._open()
        for client, row in zip(clients.tolist(), records.numpy(), strict=True):
            transaction.put(client.to_bytes(8, "big"), row.tobytes())

    def end_round(self) -> None:
        self._open().commit()
        self._round = None

    def commit(self, t: int, state: Tensor) -> None:
        self._transaction.put(b"t", t.to_bytes(8, "big"))
        self._transaction.put(b"w", state.numpy().tobytes())
        self._transaction.commit()
        self._transaction = None

    def restored(self) -> tuple[int, Tensor]:
        """Round and state of what is on disk."""
        with self._environment.begin() as transaction:
            t, w = transaction.get(b"t"), transaction.get(b"w")
            return int.from_bytes(t, "big"), torch.frombuffer(bytearray(w), dtype=torch.float32)


WAYS = {"files": Files, "lmdb": Embedded}


def rounds(way: Way, number: int, every: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of the processor and by the clock of each `every` rounds, their commit included, by round; and the
    peak, in MB, of memory that is not of files."""
    rng, state = np.random.default_rng(0), torch.zeros(STATE)
    processor, clock, peak = [], [], 0.0
    for first in range(0, (number + WARM_UPS) * every, every):
        started = time.process_time(), time.perf_counter()
        for _ in range(every):
            for clients in np.split(rng.choice(CLIENTS, COHORT, replace=False), COHORT // CHUNK):
                way.put(clients, way.get(clients) + 1)
            way.end_round()
            state = state + 1
            peak = max(peak, memory("RssAnon"))
        way.commit(first + every - 1, state)
        if first >= WARM_UPS * every:
            processor.append(1e3 * (time.process_time() - started[0]) / every)
            clock.append(1e3 * (time.perf_counter() - started[1]) / every)
    return processor, clock, peak


def expected(t: int) -> np.ndarray:
    """How often each client (CLIENTS,) has taken part after round `t`, which is each number of its record."""
    rng, times = np.random.default_rng(0), np.zeros(CLIENTS, dtype=np.int64)
    for _ in range(t + 1):
        times[rng.choice(CLIENTS, COHORT, replace=False)] += 1
    return times


def looked_at(name: str, folder: Path) -> int:
    """0 if everything in `folder` is right, 3 if something is wrong and nothing was said, 4 if an error says so."""
    try:
        way = WAYS[name](folder)
        t, state = way.restored()
        times = expected(t)
        right = bool((state == t + 1).all())
        for clients in np.split(np.arange(CLIENTS), CLIENTS // CHUNK):
            right &= bool((way.get(clients) == torch.from_numpy(times[clients])[:, None]).all())
    except Exception:
        return 4
    return 0 if right else 3


def damaged(name: str, folder: Path, number: int) -> Counter[str]:
    """What becomes of `number` copies with one bit flipped, and of as many that end early."""
    rng, found = np.random.default_rng(1), Counter[str]()
    files = [path for path in folder.rglob("*") if path.is_file() and "lock" not in path.name]
    sizes = np.array([path.stat().st_size for path in files])
    for i in range(2 * number):
        path = files[rng.choice(len(files), p=sizes / sizes.sum())]
        place, size = int(rng.integers(path.stat().st_size)), path.stat().st_size
        with path.open("r+b") as file:
            file.seek(place)
            before = file.read() if i % 2 else file.read(1)
            file.seek(place)
            if i % 2:
                file.truncate()
            else:
                file.write(bytes([before[0] ^ 1 << int(rng.integers(8))]))
        command = [sys.executable, __file__, "--look", name, "--folder", str(folder)]
        code = subprocess.run(command, check=False).returncode  # noqa: S603
        kind = "ends early" if i % 2 else "flipped"
        found[f"{kind}: {FOUND.get(code, f'process ended by signal {-code}')}"] += 1
        with path.open("r+b") as file:
            file.seek(place)
            file.write(before)
        assert path.stat().st_size == size  # noqa: S101 (as it was)
    return found


def memory(name: str) -> float:
    """Resident memory in MB: `VmRSS` now, `VmHWM` its peak, `RssAnon` what is not of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e6


def one(name: str, folder: Path, number: int, every: int) -> str:
    """One way's row."""
    torch.set_num_threads(1)
    before, anonymous = memory("VmRSS"), memory("RssAnon")
    processor, clock, peak = rounds(WAYS[name](folder), number, every)
    times = [f"{median(ms):.0f} [{min(ms):.0f}, {max(ms):.0f}]" for ms in (processor, clock)]
    size = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 1e6
    return (
        f"{name:6} {times[0]:>20} {times[1]:>20} {memory('VmHWM') - before:10.0f} {peak - anonymous:10.0f} {size:10.0f}"
    )


def main() -> None:
    """Print a row for each way, then what becomes of damage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where things are kept; default: a temporary folder")
    parser.add_argument("--rounds", type=int, default=20, help="rounds that are counted")
    parser.add_argument("--every", type=int, default=1, help="rounds from commit to commit")
    parser.add_argument("--damages", type=int, default=20, help="bits to flip, one at a time, and early ends")
    parser.add_argument("--only", choices=WAYS, help="one row, in this process")
    parser.add_argument("--look", choices=WAYS, help="look at what is in the folder; the exit status says how it is")
    given = parser.parse_args()
    if given.look:
        sys.exit(looked_at(given.look, given.folder))
    if given.only:
        print(one(given.only, given.folder, given.rounds, given.every), flush=True)
        return
    print(
        f"{'':6} {'processor, ms':>20} {'clock, ms':>20} {'peak, MB':>10} {'own, MB':>10} {'disk, MB':>10}", flush=True
    )
    root = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        for name in WAYS:
            (root / name).mkdir()
            subprocess.run([sys.executable, __file__, "--only", name, "--folder", str(root / name),  # noqa: S603
                            "--rounds", str(given.rounds), "--every", str(given.every)], check=True)  # fmt: skip
        for name in WAYS:
            print(name, dict(sorted(damaged(name, root / name, given.damages).items())), flush=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()

"""What it costs that state survives: milliseconds per checkpoint, per round of records and per load, before and after.

    git worktree add /tmp/before 703cebd        # or any other version to compare with
    python -m benchmarks.durability --before /tmp/before/src [--folder FOLDER] [--out docs/costs.json]

Both versions take turns, each in a process of its own, on the same disk. `state` is a server's record of two vectors
(Scaffold's); `records` are 10,000 clients with one vector of 7,850 float32 each, of whom 1,000 take part in a round, in
a file beside the checkpoint or, in memory, inside it. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedflat.engine.client_store import ClientStore
from fedflat.methods import find
from fedflat.rounds import checkpoint

CLIENTS, COHORT, CHUNK, WIDTH = 10_000, 1000, 250, 7850
SOURCE = Path(__file__).parents[1] / "src"


def seconds(work: Callable[[], object], repeats: int = 3, warm_ups: int = 1) -> float:
    """The median of some calls, after some that are not counted."""
    for _ in range(warm_ups):
        work()
    found = []
    for _ in range(repeats):
        started = perf_counter()
        work()
        found.append(perf_counter() - started)
    return median(found)


def of_state(parameters: int, folder: Path) -> dict[str, float]:
    """A server's record."""
    path, tensors = folder / "state.safetensors", {"w": torch.rand(parameters), "c": torch.rand(parameters)}
    saved = seconds(lambda: checkpoint.save(path, tensors, {"t": 1, "history": [], "settings": {}}))
    return {"save": saved, "load": seconds(lambda: checkpoint.load(path))}


def of_records(budget: int, folder: Path) -> dict[str, float]:
    """Clients' records, all of whom have been seen."""
    method, w, path = find("Scaffold")(), torch.zeros(WIDTH), folder / "records.safetensors"
    store = ClientStore(method, CLIENTS, w, budget, folder)
    message, rng = method.broadcast(method.init_server(w)), np.random.default_rng(0)

    def train(clients: np.ndarray) -> None:
        for some in np.split(clients, len(clients) // CHUNK):
            records = store.get(some, message.map(lambda x: x.expand(CHUNK, -1)))
            store.stage(some, records.map(lambda x: x + 1))
        store.commit()

    def save() -> None:
        checkpoint.save(path, store.tensors(folder), {"t": 1})
        store.saved()

    def load() -> None:
        tensors, _ = checkpoint.load(path, streamed=("c", "clients."))
        ClientStore(method, CLIENTS, w, budget, folder).restore(tensors, folder)

    train(np.arange(CLIENTS))
    save()
    each = seconds(lambda: train(rng.choice(CLIENTS, COHORT, replace=False)), repeats=15, warm_ups=10)
    return {"round": each, "save": seconds(save), "load": seconds(load)}


def measured(folder: Path) -> dict[str, float]:
    """All figures of the version that this process has imported."""
    torch.set_num_threads(1)
    found = {}
    cases: dict[str, Callable[[Path], dict[str, float]]] = {
        "state, 1.1M": lambda place: of_state(1_100_000, place),
        "state, 11M": lambda place: of_state(11_000_000, place),
        "10,000 records, file": lambda place: of_records(0, place),
        "10,000 records, memory": lambda place: of_records(10**12, place),
    }
    for name, work in cases.items():
        place = Path(tempfile.mkdtemp(dir=folder))
        found |= {f"{name}: {what}": 1e3 * value for what, value in work(place).items()}
        shutil.rmtree(place)
    return found


def main() -> None:
    """Print a row for each figure: medians over turns, and the least and most of the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, default=SOURCE, help="the folder `src` of the version to compare with")
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    parser.add_argument("--folder", type=Path, help="where files are written; default: a temporary folder")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each version")
    parser.add_argument("--measure", action="store_true", help="print this version's figures as JSON")
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measured(given.folder)))
        return
    versions = {"before": given.before, "after": SOURCE}
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    root = Path(tempfile.mkdtemp(dir=given.folder))
    try:
        for _ in range(given.repeats):
            for name, source in versions.items():
                command = [sys.executable, __file__, "--measure", "--folder", str(root)]
                environment = os.environ | {"PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)  # noqa: S603
                turns[name].append(json.loads(done.stdout))
    finally:
        shutil.rmtree(root)
    rows = [compared(what, turns) for what in turns["after"][0]]
    if given.out:
        given.out.write_text(json.dumps({"repeats": given.repeats, "rows": rows}, indent=2) + "\n")
    print(f"{'ms':34}{'before':>10}{'after':>10}     ratio")
    for row in rows:
        ratio = f"{row['ratio']:8.2f} [{row['least']:.2f}, {row['most']:.2f}]"
        print(f"{row['what']:34}{row['before']:10.1f}{row['after']:10.1f}  {ratio}")


def compared(what: str, turns: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """One figure of both versions: medians over turns, and the ratio of the turns beside each other."""
    before, after = ([turn[what] for turn in turns[name]] for name in ("before", "after"))
    ratios = [a / b for a, b in zip(after, before, strict=True)]
    return {
        "what": what, "before": median(before), "after": median(after),
        "ratio": median(ratios), "least": min(ratios), "most": max(ratios),
    }  # fmt: skip


if __name__ == "__main__":
    main()

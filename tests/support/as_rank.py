"""What tests do as one of several ranks: `torchrun -m support.as_rank FOLDER TASK...`.

A task works in its own folder below FOLDER; rank 0 writes what all ranks found there to `found.json`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedflat as ff
from docs.method_grid import run_of
from fedflat.core.errors import InputError
from fedflat.core.method import Method
from fedflat.core.records import Delta
from fedflat.engine import problem
from fedflat.engine.client_store import ClientStore
from fedflat.engine.ranks import ALONE, Ranks, joined
from fedflat.methods import all_methods, find
from fedflat.rounds.aggregation import RunningMean
from support import positions
from support.effort import covering_methods, for_few_rounds, in_turns
from support.federation import federation, simulation
from support.method_grid import FEW, NAMED
from support.models_tried_once import tried_once
from support.processes import MARK, DivergingNetwork

EXECUTORS = ("sequential", "stacked")


def rounds(method: Method, executor: str, ranks: Ranks = ALONE, **changes) -> ff.Simulation:
    """Four rounds in float32 with uneven clients; in a stack the functions are those that round alike everywhere."""
    torch.manual_seed(0)
    function = nn.Tanh() if executor == "sequential" else nn.ReLU()
    model = nn.Sequential(nn.Linear(6, 7), function, nn.Linear(7, 3))
    return simulation(
        method, model=model, executor=executor, ranks=ranks, dtype=torch.float32, **{"rounds": 4} | changes
    )


def digest(sim: ff.Simulation) -> str:
    """Of everything that the server keeps, in bits, and of what the round reports."""
    sha = hashlib.sha256()
    for x in sim.server.tensors().values():
        sha.update(x.numpy().tobytes())
    last = {name: value for name, value in sim.history[-1].items() if name != "seconds"}
    return f"{sha.hexdigest()} {json.dumps(last, sort_keys=True)}"


def every_method(folder: Path, ranks: Ranks) -> dict[str, str]:
    found = {}
    for name, executor in in_turns(covering_methods(), EXECUTORS):
        sim = rounds(for_few_rounds(find(name)), executor, ranks)
        list(sim)
        found[f"{name} {executor}"] = digest(sim)
    return found


def labels_of_positions(folder: Path, ranks: Ranks) -> dict[str, str]:
    """Texts and pictures with a label at each position, and clients' own models of the texts."""
    found = {}
    for kind, changes in (("next-token", {}), ("next-token", {"keep": ["out.*"]}), ("segmentation", {})):
        sim = positions.simulation(kind, dtype=torch.float32, rounds=2, ranks=ranks, executor="sequential", **changes)
        list(sim)
        found[f"{kind} {changes}"] = digest(sim)
    return found


def every_setting(folder: Path, ranks: Ranks) -> dict[str, str]:
    """What goes with several ranks, of the grid of methods and settings."""
    found = {}
    for name, title in FEW:
        if all_methods()[name].training != "local":
            sim = run_of(name, NAMED[title], dtype="float32").build(ranks=ranks)
            list(sim)
            found[f"{name} {title}"] = digest(sim)
    return found


def private(folder: Path, ranks: Ranks) -> dict[str, str]:
    """Private rounds, of which some have fewer clients than there are ranks, and noise that all ranks must share."""
    sim = private_rounds(ranks)
    list(sim)
    found = digest(sim)
    sim = private_rounds(ranks, noise="system")
    list(sim)
    assert len(set(ranks.gather(digest(sim).split()[0]))) == 1, "the model under the system's noise"
    return {"end": found}


def private_rounds(ranks: Ranks, noise: str = "seeded-not-private") -> ff.Simulation:
    """Four private rounds of one in six clients, on average."""
    privacy = ff.Privacy(epsilon=100.0, delta=0.01, clip=0.5, rate=0.2, noise_multiplier=1.0, noise=noise)
    return rounds(find("Scaffold")(), "stacked", ranks, participation=1.0, privacy=privacy,
                  client={"epochs": None, "steps": 3})  # fmt: skip


def checkpoints(folder: Path, ranks: Ranks) -> dict[str, str]:
    """From a checkpoint of one process, whose records are in a file, on, and to one of all ranks."""
    sim = rounds(find("FedSMOO")(), "stacked", ranks)
    sim.load(folder / "alone" / "round.safetensors")
    sim.round()
    sim.save(folder / "together" / "round.safetensors")
    list(sim)
    return {"end": digest(sim)}


def diverging(folder: Path, ranks: Ranks) -> dict[str, str]:
    """Client 4 gives NaN; the last rank alone is the one that trains it, or all others wait for ever."""
    data = federation()
    data.x[data.offsets[4], 0] = MARK
    sim = simulation(find("FedSMOO")(), model=DivergingNetwork(), data=data, participation=1.0, ranks=ranks)
    try:
        sim.round()
    except ff.NonFiniteError as error:
        return {f"rank {ranks.index}": str(error)}
    return {}


def refused(folder: Path, ranks: Ranks) -> dict[str, str]:
    """What several ranks cannot do, and what differs between them."""
    said = {}
    attempts = {
        "workers": lambda: rounds(find("FedAvg")(), "sequential", ranks, workers=2),
        "probes": lambda: rounds(find("FedAvg")(), "sequential", ranks, probes=["sharpness"]),
        "dry round": lambda: rounds(find("FedSMOO")(), "sequential", ranks).flatness(["consistency"]),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except InputError as error:
            said[f"{name} {ranks.index}"] = str(error)
    return said


def unreadable(folder: Path, ranks: Ranks) -> dict[str, str]:
    """The records of the last rank cannot be read when all save: all raise that, none waits, and all go on."""
    sim, read = rounds(find("Scaffold")(), "sequential", ranks, store_budget=0, participation=6), ClientStore.rows
    sim.round()

    def broken(store: ClientStore, name: str, clients: np.ndarray) -> torch.Tensor:
        if len(clients):
            raise InputError("client records: the disk is gone")
        return read(store, name, clients)

    said = {}
    if ranks.index == ranks.number - 1:
        ClientStore.rows = broken
    try:
        sim.save(folder / "round-000001.safetensors")
    except InputError as error:
        said[f"rank {ranks.index}"] = str(error)
    ClientStore.rows = read
    said["files"] = str(sorted(path.name for path in folder.glob("*.safetensors")))
    list(sim)
    sim.save(folder / "round-000004.safetensors")
    return said | {"end": digest(sim)}


def idle(folder: Path, ranks: Ranks) -> dict[str, str]:
    """One client a round: all ranks but one have nothing to train."""
    sim = rounds(find("Scaffold")(), "sequential", ranks, participation=1)
    list(sim)
    return {"end": digest(sim)}


def shares(folder: Path, ranks: Ranks) -> dict[str, str]:
    work = np.array([9, 1, 1, 8, 1])
    return {f"rank {ranks.index}": str(ranks.share(work, None).tolist())}


def cancelling(folder: Path, ranks: Ranks) -> dict[str, str]:
    return {"mean": mean_of_cancelling_messages(ranks)}


def mean_of_cancelling_messages(ranks: Ranks) -> str:
    """The mean of messages of which the large ones, of rank 0, cancel; they decide what is kept of the small ones."""
    sizes = torch.tensor([2.0**60, -(2.0**60), 1 / 3, 2 / 3]).double()[:, None]
    messages = torch.tensor([1.0, 10.0, 1e6]).double() * sizes
    mean, drifts = RunningMean(find("FedAvg")(), torch.zeros(3).double()), torch.zeros(4).double()
    for i, owner in enumerate((0, 0, 1, 2)):
        if owner % ranks.number == ranks.index:
            mean.add(Delta(messages[i : i + 1]), torch.ones(1, 1), torch.ones(1, 1))
    ranks.add_up(mean, drifts)
    return str(mean.value().delta.tolist())


if __name__ == "__main__":
    problem.randomness_of = tried_once()
    with joined(patience=60) as together:
        for task in sys.argv[2:]:
            folder = Path(sys.argv[1]) / task
            answer = globals()[task](folder, together)
            everybody = {name: text for its in reversed(together.gather(answer)) for name, text in its.items()}
            if together.index == 0:
                (folder / "found.json").write_text(json.dumps(everybody))

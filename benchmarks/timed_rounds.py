"""Times rounds of one work with the fedflat that is on the path; `against.py` runs it with the source of a commit.

Reads the work as a line of JSON and answers with the name of the executor; then answers every line with the processor
seconds of the work's rounds. Commits differ in everything inside the package, so only `fedflat`'s own names are used.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from math import prod
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import nn

import fedflat

CLASSES = 10


def simulation(work: dict[str, Any]) -> fedflat.Simulation:
    """Return FedAvg on noise, with the sizes of `work`, the settings of a `benchmarks.workloads.Workload`."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(work["pool"], *work["shape"], generator=random)
    y = torch.randint(CLASSES, (work["pool"],), generator=random)
    members = np.resize(np.arange(work["pool"]), work["clients"] * work["samples"])
    offsets = np.arange(work["clients"] + 1) * work["samples"]
    return fedflat.Simulation(
        model=network([prod(work["shape"]), *work["options"]["hidden"], CLASSES]),
        data=fedflat.FederatedData(x, y, members, offsets, classes=CLASSES),
        method=fedflat.methods.FedAvg(),
        client=fedflat.Client(lr=0.01, steps=work["steps"], batch_size=work["batch"]),
        rounds=10**6,
        participation=work["cohort"],
        workers=1,
        device="cpu",
    )


def network(widths: list[int]) -> nn.Sequential:
    """Return linear layers between `widths`, with ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def main() -> None:
    """Answer until the input ends."""
    torch.set_num_threads(1)
    work = json.loads(sys.stdin.readline())
    trained = simulation(work)
    trained.round()
    print(json.dumps(trained.settings()["executor"]), flush=True)
    for _ in sys.stdin:
        started = process_time()
        for _ in range(work["rounds"]):
            trained.round()
        print(json.dumps((process_time() - started) / work["rounds"]), flush=True)


if __name__ == "__main__":
    main()

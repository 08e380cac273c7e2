"""Federations of small studies on the in-process grid."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedflat.experiments import runner
from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower.client_app import client_app
from fedflat.federation.flower.event_log import read_events
from fedflat.federation.flower.server_app import serve
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import FILE, Study
from support.local_grid import LocalGrid, Node
from support.studies import run_spec

OWN_SAMPLES = {"clients": 3, "shape": "6", "classes": 3}  # run-config of clients with own samples


def study_of(**changes: Any) -> RunSpec:
    """Five uneven clients of the digits, three in each of four rounds."""
    data, partition = {"name": "digits", "clients": 5}, {"name": "dirichlet", "alpha": 0.5}
    usual = {"data": data, "partition": partition, "participation": 0.6, "rounds": 4, "executor": "sequential"}
    return run_spec(**({"flatness": []} | usual | changes))


def own_study(**changes: Any) -> RunSpec:
    """A study of clients with their own samples, see `OWN_SAMPLES`."""
    return study_of(model={"name": "mlp", "options": {"hidden": [5]}}, method="scaffold", participation=2, **changes)


def own_clients(sizes: tuple[int, ...] = (9, 4, 6)) -> list[tuple[np.ndarray, np.ndarray]]:
    """Samples of clients that fit `own_study`."""
    rng = np.random.default_rng(0)
    return [(rng.normal(i, 1, (n, 6)).astype("float32"), rng.integers(3, size=n)) for i, n in enumerate(sizes)]


class GridFederation:
    """A federation of `spec` in `folder` on the in-process grid, to be served once or several times."""

    def __init__(self, spec: RunSpec, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text(spec.to_toml())
        self.spec, self.folder, self.out = spec, folder, folder / "out"
        self.config = {"out": str(self.out), "clients": spec.data.clients, "wait": 5.0, "deadline": 5.0} | settings
        clients = self.config["clients"]
        self.nodes = {100 + i: self.node(i, clients) for i in range(clients)} if "shape" not in settings else {}

    def node(self, number: int, clients: int) -> Node:
        """The node of a part of the named set."""
        config = {"partition-id": number, "num-partitions": clients, "state": str(self.folder / "state")}
        return Node(client_app(self.folder), config)

    def own_node(self, name: str, **config: Any) -> Node:
        """The node of a client with its own samples in a folder."""
        return Node(client_app(self.folder), {"name": name, "state": str(self.folder / "state"), **config})

    def own_nodes(self, samples: Callable[[str], Any], names: Iterable[str] = "abc") -> dict[int, Node]:
        """Nodes 1, 2, ... of clients whose samples a function returns by name."""
        app = client_app(self.folder, lambda node: samples(node["name"]))
        return {i: Node(app, self.own_node(name).config) for i, name in enumerate(names, start=1)}

    @property
    def study(self) -> Study:
        return Study.load(self.folder, RunSettings.parse("run-config", self.config))

    def serve(self, nodes: Mapping[int, Node] | None = None, grid: type[LocalGrid] = LocalGrid) -> bytes:
        """Carry it out, as a new server process would; return the model's file."""
        serve(self.study, grid(self.nodes if nodes is None else nodes, self.config))
        return (self.out / "model.safetensors").read_bytes()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return events_of(self.out, kind)


def simulated(spec: RunSpec, folder: Path) -> bytes:
    """Simulate a study; return the model's file."""
    runner.run(spec, folder)
    return (folder / "model.safetensors").read_bytes()


def events_of(out: Path, kind: str) -> list[dict[str, Any]]:
    """The events of one kind in a federation's folder."""
    return [event for event in read_events(out) if event["event"] == kind]


def wait_for(what: str, happened: Callable[[], object], seconds: float = 300.0) -> None:
    """Wait until `happened` returns something true; machines are busy, so the limit is high."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)


@contextmanager
def failing(kind: type[Exception], line: str) -> Iterator[None]:
    """`pytest.raises`, for a plain text."""
    with pytest.raises(kind, match=re.escape(line)):
        yield

"""Federations of small studies on the in-process grid."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedflat.experiments.spec import RunSpec
from fedflat.federation.flower import event_log, transport
from fedflat.federation.flower.client_app import client_app
from fedflat.federation.flower.server_app import serve
from fedflat.federation.flower.settings import RunSettings
from fedflat.federation.flower.study import FILE, Study
from support.local_grid import LocalGrid, Node
from support.studies import run_spec


def study_of(**changes: Any) -> RunSpec:
    """Five uneven clients of the digits, three in each of four rounds."""
    data, partition = {"name": "digits", "clients": 5}, {"name": "dirichlet", "alpha": 0.5}
    usual = {"data": data, "partition": partition, "participation": 0.6, "rounds": 4, "executor": "sequential"}
    return run_spec(**({"flatness": []} | usual | changes))


class Tried:
    """A federation of `spec` in `folder`, to be served once or several times."""

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
        """A node of a client with its own samples."""
        return Node(client_app(self.folder), {"name": name, "state": str(self.folder / "state"), **config})

    @property
    def study(self) -> Study:
        return Study.load(self.folder, RunSettings.of("run-config", self.config))

    def serve(self, nodes: Mapping[int, Node] | None = None, grid: type[LocalGrid] = LocalGrid) -> bytes:
        """Carry it out, with new processes as it were; gives the model's file."""
        serve(self.study, grid(self.nodes if nodes is None else nodes, self.config))
        return (self.out / "model.safetensors").read_bytes()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in event_log.read(self.out) if event["event"] == kind]


@contextmanager
def failing(kind: type[Exception], line: str) -> Iterator[None]:
    """`pytest.raises`, for a plain text."""
    with pytest.raises(kind, match=re.escape(line)):
        yield


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses: a grid in this process has every reply at once."""
    monkeypatch.setattr(transport, "POLL", 0.001)
    monkeypatch.setattr(transport, "LOOK", 0.0)

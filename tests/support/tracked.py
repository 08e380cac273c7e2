"""Reads what was tracked, with each tool's own reader where it has one."""

from __future__ import annotations

import csv
import json
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 60  # seconds


@dataclass
class Tracked:
    """One run as a tool shows it."""

    name: str
    settings: dict[str, Any]
    metrics: dict[str, list[tuple[int, float]]]  # (step, value) of each metric, in the order in which they are there
    summary: dict[str, float]

    @classmethod
    def of(cls, name: str, settings: dict[str, Any], points: Iterator[tuple[str, int, float]]) -> Tracked:
        metrics: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for metric, step, value in points:
            metrics[metric].append((step, value))
        finals = {name.removeprefix("summary/"): x[-1][1] for name, x in metrics.items() if name.startswith("summary/")}
        return cls(name, settings, {n: x for n, x in metrics.items() if not n.startswith("summary/")}, finals)


def read_csv(root: Path) -> list[Tracked]:
    return [_read_csv(path.parent) for path in sorted(root.rglob("metrics.csv"))]


def _read_csv(folder: Path) -> Tracked:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    points = ((name, int(r["t"]), float(x)) for r in rows for name, x in r.items() if name != "t" and x)
    tracked = Tracked.of(folder.name, {}, points)
    if (folder / "summary.csv").exists():
        with (folder / "summary.csv").open(newline="") as file:
            tracked.summary = {row["name"]: float(row["value"]) for row in csv.DictReader(file)}
    return tracked


def read_tensorboard(root: Path) -> list[Tracked]:
    """All events, those included that TensorBoard would hide as doubled."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    runs = []
    for folder in sorted((root / "tensorboard").iterdir()):
        points, settings = [], ""
        for path in sorted(folder.iterdir()):
            for event in EventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    content = make_ndarray(value.tensor)
                    if value.metadata.plugin_data.plugin_name == "text":
                        settings = content.reshape(-1)[0].decode()
                    else:
                        points.append((value.tag, event.step, float(content)))
        runs.append(Tracked.of(folder.name, {"toml": settings}, iter(points)))
    return runs


@dataclass
class _WandbRun:
    name: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    points: list[tuple[str, int, float]] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)


def read_wandb(root: Path) -> list[Tracked]:
    """From the files that `wandb sync` would upload, oldest first."""
    found: dict[str, _WandbRun] = {}
    for path in sorted((root / "wandb").glob("offline-run-*/run-*.wandb")):  # named by the time
        run = found.setdefault(path.stem, _WandbRun())
        for kind, record in _wandb_records(path):
            if kind == "run":
                run.name = record.run.display_name
                run.settings |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
            elif kind == "history":
                row = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
                values = {name: x for name, x in row.items() if not name.startswith("_")}
                run.points += [(name, row["_step"], x) for name, x in values.items()]
            elif kind == "summary":
                run.summary |= {
                    (one.key or one.nested_key[0]): json.loads(one.value_json) for one in record.summary.update
                }
    runs = [Tracked.of(run.name, run.settings, iter(run.points)) for run in found.values()]
    for run, raw in zip(runs, found.values(), strict=True):
        run.summary = {n.removeprefix("summary/"): x for n, x in raw.summary.items() if n.startswith("summary/")}
    return runs


def _wandb_records(path: Path) -> list[tuple[str, Any]]:
    """The records of a file and their kinds, when the last one is there: wandb's own process writes them."""
    from wandb.proto.wandb_internal_pb2 import Record

    deadline = time.monotonic() + PATIENCE
    while True:
        records = [Record.FromString(content) for content in _log_records(path.read_bytes())]
        kinds = [record.WhichOneof("record_type") for record in records]
        if "exit" in kinds:
            return list(zip(kinds, records, strict=True))
        assert time.monotonic() < deadline, f"{path} does not end"
        time.sleep(0.05)


def _log_records(content: bytes) -> Iterator[bytes]:
    """The records in a file of LevelDB's log format, of which wandb's files have 7 bytes before the first block's."""
    block, header, at, parts = 32768, 7, 7, b""
    while at + header <= len(content):
        if block - at % block < header:
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + header])
        parts += content[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def read_mlflow(root: Path) -> list[Tracked]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{(root / 'mlflow.db').resolve()}")
    runs = []
    for run in client.search_runs([client.get_experiment_by_name(root.name).experiment_id]):
        names = run.data.metrics
        points = ((n, one.step, one.value) for n in names for one in client.get_metric_history(run.info.run_id, n))
        runs.append(Tracked.of(run.info.run_name, run.data.params, points))
    return runs


READERS = {"csv": read_csv, "tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow}

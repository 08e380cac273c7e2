"""Run folders that somebody has made to do harm, or a disk has damaged: each case spoils a copy of a finished run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Case = Callable[[Path], None]
ESCAPE = "\x1b[2J\x1b]0;owned\x07\nfedflat: done\r<script>alert(1)</script>[/x][red]"
MISSING = object()


def edited(file: str, *place: str | int, value: Any = MISSING) -> Case:
    """A key of a JSON file with another value, or without."""

    def spoil(run: Path) -> None:
        content = json.loads((run / file).read_text())
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        if value is MISSING:
            del inner[place[-1]]
        else:
            inner[place[-1]] = value
        (run / file).write_text(json.dumps(content))

    return spoil


def written(file: str, content: bytes | str) -> Case:
    def spoil(run: Path) -> None:
        (run / file).parent.mkdir(exist_ok=True)
        (run / file).unlink(missing_ok=True)
        (run / file).write_bytes(content.encode() if isinstance(content, str) else content)

    return spoil


def columns(file: str, change: Callable[[pa.Table], pa.Table | dict[str, Any]]) -> Case:
    """A parquet file with another table in it."""

    def spoil(run: Path) -> None:
        made = change(pq.read_table(run / file))
        pq.write_table(made if isinstance(made, pa.Table) else pa.table(made), run / file)

    return spoil


def replaced(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def folder(file: str) -> Case:
    def spoil(run: Path) -> None:
        (run / file).unlink()
        (run / file).mkdir()

    return spoil


def pipe(file: str) -> Case:
    def spoil(run: Path) -> None:
        (run / file).unlink()
        os.mkfifo(run / file)

    return spoil


def loop(file: str) -> Case:
    def spoil(run: Path) -> None:
        (run / file).unlink()
        (run / file).symlink_to(run / file)

    return spoil


def device(run: Path) -> None:
    (run / "summary.json").unlink()
    (run / "summary.json").symlink_to("/dev/zero")


def sparse(file: str, size: int) -> Case:
    """As large as `size` bytes, all of them 0, which take no room on the disk."""

    def spoil(run: Path) -> None:
        with (run / file).open("wb") as opened:
            opened.truncate(size)

    return spoil


def truncated(file: str) -> Case:
    def spoil(run: Path) -> None:
        content = (run / file).read_bytes()
        # Half of a TOML file may be one by itself.
        end = content.rindex(b"=") + 1 if file.endswith(".toml") else len(content) // 2
        (run / file).write_bytes(content[:end])

    return spoil


def text_of(file: str, old: str, new: str) -> Case:
    def spoil(run: Path) -> None:
        text = (run / file).read_text()
        assert old in text, f"{file} has no {old}"
        (run / file).write_text(text.replace(old, new))

    return spoil


def cases() -> dict[str, Case]:
    """Every case by name; none of them is a run that could be shown."""
    return {**_summaries(), **_findings(), **_tables(), **_configurations(), **_places()}


def _summaries() -> dict[str, Case]:
    f = "summary.json"
    return {
        "summary: no summary": edited(f, "summary"), "summary: no settings": edited(f, "settings"),
        "summary: no cost": edited(f, "cost"), "summary: no method": edited(f, "settings", "method"),
        "summary: no split": edited(f, "settings", "split"), "summary: no data": edited(f, "settings", "data"),
        "summary: no rounds": edited(f, "summary", "rounds"), "summary: no drift": edited(f, "summary", "drift"),
        "summary: no vector_bytes": edited(f, "summary", "vector_bytes"),
        "summary: no evaluations": edited(f, "summary", "test_accuracy_evaluations"),
        "summary: no clients": edited(f, "summary", "client_accuracy_worst"),
        "summary: a list": written(f, "[]"), "summary: null": written(f, "null"), "summary: a number": written(f, "1"),
        "summary: empty": written(f, ""), "summary: brackets": written(f, "[" * 200_000),
        "summary: objects": written(f, '{"summary": ' * 100_000), "summary: digits": written(f, "9" * 5000),
        "summary: digits inside": text_of(f, '"rounds": ', '"rounds": ' + "9" * 5000),
        "summary: not UTF-8": written(f, b'{"a": "\xff"}'), "summary: truncated": truncated(f),
        "summary: half a pair": text_of(f, '"weights": "', '"weights": "\\ud800'),
        "summary: a table as list": edited(f, "summary", value=[1, 2]),
        "summary: texts": edited(f, "summary", value="x"),
        "summary: NaN": edited(f, "summary", "test_accuracy", value=float("nan")),
        "summary: infinite": edited(f, "summary", "rounds", value=float("inf")),
        "summary: huge": edited(f, "summary", "gradients", value=1e308),
        "summary: above 1": edited(f, "summary", "test_accuracy", value=7.0),
        "summary: no bytes": edited(f, "summary", "vector_bytes", value=0),
        "summary: text for a number": edited(f, "summary", "test_accuracy", value="0.5"),
        "summary: null for a number": edited(f, "summary", "test_accuracy", value=None),
        "summary: true for a number": edited(f, "summary", "seconds", value=True),
        "summary: table for a text": edited(f, "settings", "layers", value={"a": 1}),
        "summary: text for a table": edited(f, "settings", "model", value="f(" * 400),
        "summary: no class": edited(f, "settings", "method", "class"),
        "summary: no step size": edited(f, "settings", "client", "lr"),
        "summary: text for a step size": edited(f, "settings", "client", "lr", value="x"),
        "summary: text for a share": edited(f, "settings", "participation", value={"class": "Share", "share": "<b>"}),
        "summary: null for a number of clients": edited(
            f, "settings", "participation", value={"class": "Number", "number": None}),
        "summary: deep table": text_of(f, '"method": {', '"method": ' + '{"class": "x", "base": ' * 5000 + "{"),
        "summary: escapes": edited(f, "settings", "data", "name", value=ESCAPE),
        "summary: escapes in a key": edited(f, "summary", ESCAPE, value=1.0),
        "summary: escapes in hyper": edited(f, "settings", "method", ESCAPE, value=1),
        "summary: long text": edited(f, "settings", "data", "name", value="x" * 10_000_000),
        "summary: list in hyper": edited(f, "settings", "method", "rho", value=[[1]]),
        "summary: text in split": edited(f, "settings", "split", "clients", value="many"),
        "summary: 200 MB": sparse(f, 200 * 10**6),
        "summary: another run's": edited(f, "settings", "label", value="FedProx"),
    }  # fmt: skip


def _findings() -> dict[str, Case]:
    f = "flatness.json"
    return {
        "flatness: null": written(f, "null"), "flatness: a table": written(f, "{}"), "flatness: empty": written(f, ""),
        "flatness: brackets": written(f, "[" * 200_000), "flatness: no values": edited(f, 0, "values"),
        "flatness: a list": edited(f, 0, "values", value=[1]), "flatness: a text": edited(f, 0, "measure", value=1),
        "flatness: escapes": edited(f, 0, "protocol", value=ESCAPE),
        "flatness: text for a number": edited(f, 0, "values", value={"x": {"value": "1", "error": None, "kind": None}}),
        "flatness: escapes in a name": edited(f, 0, "values", value={ESCAPE: {"value": 1.0}}),
        "flatness: no curve": edited(f, 0, "curves", value={"c": {"x": [], "y": [], "x_label": "", "y_label": ""}}),
        "flatness: unequal": edited(f, 0, "curves", value={"c": {"x": [1], "y": [1, 2], "x_label": "", "y_label": ""}}),
        "flatness: NaN": edited(
            f, 0, "curves", value={"c": {"x": [float("nan")], "y": [1], "x_label": "", "y_label": ""}}
        ),
    }  # fmt: skip


def _tables() -> dict[str, Case]:
    m, p = "metrics.parquet", "partition.parquet"
    return {
        "metrics: no t": columns(m, lambda t: t.drop_columns(["t"])),
        "metrics: no bytes": columns(m, lambda t: t.drop_columns(["bytes_up"])),
        "metrics: no accuracy": columns(m, lambda t: t.drop_columns(["test_accuracy"])),
        "metrics: accuracy never": columns(m, lambda t: replaced(t, "test_accuracy", pa.nulls(len(t), pa.float64()))),
        "metrics: accuracy above 1": columns(m, lambda t: replaced(t, "test_accuracy", [1e308] * len(t))),
        "metrics: text": columns(m, lambda t: replaced(t, "test_accuracy", ["x"] * len(t))),
        "metrics: t is text": columns(m, lambda t: replaced(t, "t", ["x"] * len(t))),
        "metrics: t is negative": columns(m, lambda t: replaced(t, "t", [-1] * len(t))),
        "metrics: t is empty": columns(m, lambda t: replaced(t, "t", pa.nulls(len(t), pa.int64()))),
        "metrics: no rows": columns(m, lambda t: t.slice(0, 0)),
        "metrics: nested": columns(m, lambda t: replaced(t, "gradients", [[1.0]] * len(t))),
        "metrics: tables": columns(m, lambda t: replaced(t, "gradients", [{"a": 1.0}] * len(t))),
        "metrics: NaN": columns(m, lambda t: replaced(t, "gradients", [float("nan")] * len(t))),
        "metrics: many rows": columns(m, lambda t: {name: pa.array([0] * 10**7, pa.int8()) for name in ("t", "x")}),
        "metrics: many columns": columns(m, lambda t: {f"c{i}": [1] for i in range(5000)}),
        "metrics: escapes": columns(m, lambda t: t.append_column(ESCAPE, pa.array([1.0] * len(t)))),
        "metrics: other file": written(m, b"PAR1" + bytes(100)), "metrics: truncated": truncated(m),
        "partition: negative": columns(p, lambda t: replaced(t, "class_0", [-5] * len(t))),
        "partition: text": columns(p, lambda t: replaced(t, "class_0", ["x"] * len(t))),
        "partition: shares": columns(p, lambda t: replaced(t, "class_0", [0.5] * len(t))),
        "partition: no columns": columns(p, lambda t: t.select([])),
        "partition: no rows": columns(p, lambda t: t.slice(0, 0)),
        "partition: nulls": columns(p, lambda t: replaced(t, "class_0", pa.nulls(len(t), pa.int64()))),
        "partition: huge": columns(p, lambda t: replaced(t, "class_0", [2**62] * len(t))),
        "partition: other file": written(p, "<!doctype html>"),
    }  # fmt: skip


def _configurations() -> dict[str, Case]:
    f = "config.toml"
    return {
        "config: other method": text_of(f, 'name = "Fed', 'name = "no'), "config: not UTF-8": written(f, b"\xff"),
        "config: brackets": written(f, "a = " + "[" * 100_000), "config: digits": written(f, "rounds = " + "9" * 5000),
        "config: deep key": written(f, ".".join(["a"] * 30_000) + " = 1"), "config: truncated": truncated(f),
        "config: escapes": written(f, 'device = "\\u001b[2J"\n'),
        "config: other seed": text_of(f, "seed = 0", "seed = 7"),
        "config: another run's": written(f, "rounds = 3\nseed = 5\n"),
    }  # fmt: skip


def _places() -> dict[str, Case]:
    files = ("summary.json", "flatness.json", "metrics.parquet", "partition.parquet", "config.toml")
    kinds = {"a folder": folder, "a pipe": pipe}
    made = {f"{file}: {name}": kind(file) for file in files for name, kind in kinds.items()}
    loops = {
        f"{file}: a loop": loop(file) for file in files if file != "flatness.json"
    }  # without it nothing was measured
    return made | loops | {"summary.json: a device": device}

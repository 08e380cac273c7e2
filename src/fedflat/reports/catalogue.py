"""The methods described: everything is read off the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import cleandoc

from rich import box
from rich.table import Table

from ..comm.cost import gradients_per_step, vector_cost
from ..core.hyper import allowed
from ..core.method import Method

COSTS = ("down", "up", "kept", "grads")
LEGEND = "down, up, kept: model-sized vectors sent to, sent by and kept at each client; grads: gradients per local step"
WIDE = 200  # characters that the idea of every method needs
NARROW = 100  # characters that the arXiv numbers need


def overview(methods: Mapping[str, type[Method]], width: int) -> Table:
    """One line per method, for a console of `width` characters; narrow ones leave the idea out."""
    titles = ["method", *(["idea"] if width >= WIDE else []), *COSTS, "paper"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=LEGEND)
    for title in titles:
        table.add_column(title, justify="right" if title in COSTS else "left", no_wrap=True, overflow="ignore")
    for name, cls in methods.items():
        idea = [summary(cls)] if width >= WIDE else []
        paper = str(cls.paper) if width >= NARROW else cls.paper.short
        table.add_row(name, *idea, *map(str, costs(cls)), paper)
    return table


def markdown(methods: Mapping[str, type[Method]]) -> str:
    """The same as a Markdown table."""
    titles = ["method", "idea", *COSTS, "paper"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, cls in methods.items():
        lines.append(f"| {' | '.join([f'`{name}`', summary(cls), *map(str, costs(cls)), str(cls.paper)])} |")
    return "\n".join([*lines, "", f"{LEGEND}."])


def describe(cls: type[Method]) -> str:
    """One method in full: equations, fields, cost, citation."""
    method = cls()
    down, up, kept, gradients = costs(cls)
    lines = [
        f"{cls.__name__}({', '.join(f'{f.name}={f.default}' for f in fields(cls))})",
        "",
        documentation(cls),
        "",
        "fields",
    ]
    lines += [f"  {f.name} = {f.default}, {allowed(cls, f.name)}: {f.metadata['meaning']}" for f in fields(method)]
    lines += ["", "cost", f"  sent to a client {down}, sent back {up}, kept by a client {kept} (model-sized vectors)"]
    lines += [f"  {gradients} minibatch gradient{'s' if gradients > 1 else ''} per local step"]
    lines += [f"  weights of clients in the mean: {cls.weights}", "", cls.paper.bibtex]
    return "\n".join(lines)


def summary(cls: type[Method]) -> str:
    """The first sentence of the method's docstring."""
    return documentation(cls).split("\n")[0]


def documentation(cls: type[Method]) -> str:
    """The method's docstring, without indentation."""
    return cleandoc(cls.__doc__ or "")


def costs(cls: type[Method]) -> tuple[int, int, int, int]:
    """Vectors down, vectors up, vectors kept by a client, gradients per local step (with default fields)."""
    cost = vector_cost(cls())
    return cost.down, cost.up, cost.client, gradients_per_step(cls())

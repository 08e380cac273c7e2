"""The methods described: everything is read off the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from inspect import cleandoc

from rich import box
from rich.table import Table

from ..core.hyper import allowed
from ..core.method import Method
from ..data.partition import Partition
from ..metrics.flatness import Measure
from ..rounds.cost import full_passes_per_round, gradients_per_step, vector_cost
from .literal import literal

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
        table.add_row(*map(literal, (name, *idea, *map(str, costs(cls)), paper)))
    return table


def markdown(methods: Mapping[str, type[Method]]) -> str:
    """The same as a Markdown table."""
    titles = ["method", "idea", *COSTS, "paper"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name, cls in methods.items():
        idea = summary(cls).replace("|", "\\|")  # a norm's bars would end the cell
        lines.append(f"| {' | '.join([f'`{name}`', idea, *map(str, costs(cls)), str(cls.paper)])} |")
    return "\n".join([*lines, "", f"{LEGEND}."])


def partition_table(schemes: Mapping[str, type[Partition]]) -> str:
    """The partition schemes as a Markdown table."""
    lines = ["| name | parameters | what it does |", "|---|---|---|"]
    for name, cls in schemes.items():
        parameters = ", ".join(f"`{f.name}` = {f.default}" for f in fields(cls))
        first = documentation(cls).split("\n\n")[0].replace("\n", " ")
        lines.append(f"| `{name}` | {parameters} | {first} |")
    return "\n".join(lines)


def describe(cls: type[Method]) -> str:
    """One method in full: equations, fields, cost, departures, readings, citation."""
    signature = ", ".join(f"{f.name}={f.default}" for f in fields(cls))
    parts = [f"{cls.__name__}({signature})", documentation(cls), _fields(cls), _cost(cls)]
    parts += _list("where papers and released code depart", cls.sources.departures)
    parts += _list("how we read what the papers leave open", cls.sources.readings)
    return "\n\n".join([*parts, cls.paper.bibtex])


def _list(title: str, texts: tuple[str, ...]) -> list[str]:
    """A part of a description with one item for each text; no part without texts."""
    return ["\n".join([title, *(f"  - {text}" for text in texts)])] if texts else []


def _fields(cls: type[Method]) -> str:
    lines = ["fields"]
    for f in fields(cls):
        lines.append(f"  {f.name} = {f.default}, {allowed(cls, f.name)}: {f.metadata['meaning']}")
        if f.name in cls.sources.published:
            lines.append(f"      published: {cls.sources.published[f.name]}")
    return "\n".join(lines)


def _cost(cls: type[Method]) -> str:
    cost, gradients, passes = vector_cost(cls()), gradients_per_step(cls()), full_passes_per_round(cls())
    lines = [
        "cost with these fields, in model-sized vectors per client and round",
        f"  down {cost.down}, up {cost.up}, kept between rounds {cost.client}, held in a round {cost.stored}",
        f"  minibatch gradients per local step {gradients}" + (f", and {passes} full pass per round" if passes else ""),
        f"  weights of clients in the mean: {cls.weights}",
    ]
    if cls.sources.charged is not None:
        exact = (cost.down + cost.up) / 2
        lines.append(f"  communication relative to FedAvg: {exact:g}, charged {cls.sources.charged} by the papers")
    return "\n".join(lines)


def measure_table(measures: Mapping[str, type[Measure]]) -> str:
    """Every measure of flatness with its settings and its definition, as Markdown."""
    rows = ["| measure | settings | definition |", "|---|---|---|"]
    for name, cls in measures.items():
        settings = ", ".join(f"`{f.name}` = {f.default}" for f in fields(cls))  # type: ignore[arg-type]
        words = " ".join(documentation(cls).split()).replace("|", "\\|")
        rows.append(f"| `{name}` | {settings} | {words} |")
    return "\n".join(rows)


def summary(cls: type[Method]) -> str:
    """The first sentence of the method's docstring."""
    return documentation(cls).split("\n")[0]


def documentation(cls: type[Method] | type[Partition] | type[Measure]) -> str:
    """The class's docstring, without indentation."""
    return cleandoc(cls.__doc__ or "")


def costs(cls: type[Method]) -> tuple[int, int, int, int]:
    """Vectors down, vectors up, vectors kept by a client, gradients per local step (with default fields)."""
    cost = vector_cost(cls())
    return cost.down, cost.up, cost.client, gradients_per_step(cls())

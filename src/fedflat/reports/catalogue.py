"""Descriptions of methods, partitions and measures, from the declarations of their classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ..core.hyper import allowed
from ..core.method import GROUPS, Method
from ..core.user_code import method_errors_named
from ..rounds.cost import full_passes_per_round, gradients_per_step, vector_cost
from .method_facts import COSTS, ROLES, HyperParameter, MethodFacts, RecordField
from .method_records import WIDE, all_records, meanings, widths
from .text_table import text_table

if TYPE_CHECKING:
    from ..data.partition import Partition
    from ..metrics.flatness import Measure


def grouped(methods: Iterable[type[Method]]) -> dict[str, list[type[Method]]]:
    """Return the methods by group, in the order of `GROUPS`; groups without a method are left out."""
    found = {group: [cls for cls in methods if cls.group == group] for group in GROUPS}
    return {group: classes for group, classes in found.items() if classes}


def facts_of(cls: type[Method]) -> MethodFacts:
    """Return what lists, comparisons and searches know of a method."""
    paper = getattr(cls, "paper", None)  # a user's own method may have none
    with method_errors_named(cls()):
        cost = dict(zip(COSTS, costs(cls), strict=True)) | {"passes": full_passes_per_round(cls())}
    return MethodFacts(
        name=cls.__name__,
        group=cls.group,
        lineage=tuple(f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__ if _is_kind_of_method(base)),
        documentation=documentation(cls),
        paper=str(paper or ""),
        short=paper.short if paper else "",
        title=paper.title if paper else "",
        departures=cls.sources.departures,
        settings=tuple(HyperParameter(f.name, f"{f.default}", f.metadata.get("meaning", "")) for f in settings(cls)),
        records=tuple(_kept(cls)),
        cost=cost,
    )


def _is_kind_of_method(cls: type) -> bool:
    return issubclass(cls, Method) and cls is not Method


def _kept(cls: type[Method]) -> Iterator[RecordField]:
    """Yield what is sent, averaged and kept."""
    told = meanings(cls)
    for role, record in all_records(cls).items():
        for name, width in widths(record, cls).items():
            yield RecordField(ROLES[role], name, "d" if width == WIDE else str(width), told[record, name])


def describe(cls: type[Method]) -> str:
    """Describe a method in full: group, equations, fields, cost, where papers and code differ, readings, citation."""
    signature = ", ".join(f"{f.name}={f.default}" for f in settings(cls))
    parts = [f"{cls.__name__}({signature})\ngroup: {cls.group}", documentation(cls), _fields(cls), _cost(cls)]
    for title, texts in (
        ("where papers and released code depart", cls.sources.departures),
        ("how we read what the papers leave open", cls.sources.readings),
    ):
        if texts:
            parts.append("\n".join([title, *(f"  - {text}" for text in texts)]))
    return "\n\n".join(
        [*parts, *([cls.paper.bibtex] if hasattr(cls, "paper") else [])]
    )  # a user's own method may have no paper


def _fields(cls: type[Method]) -> str:
    lines = ["fields"]
    for f in settings(cls):
        lines.append(f"  {f.name} = {f.default}, {allowed(cls, f.name)}: {f.metadata.get('meaning', '')}")
        if f.name in cls.sources.published:
            lines.append(f"      published: {cls.sources.published[f.name]}")
        if f.name in cls.sources.grids:
            lines.append(f"      tried: {', '.join(map(str, cls.sources.grids[f.name]))}")
    return "\n".join(lines)


def _cost(cls: type[Method]) -> str:
    method = cls()
    with method_errors_named(method):
        cost, gradients, passes = vector_cost(method), gradients_per_step(method), full_passes_per_round(method)
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


def measure_overview(measures: Mapping[str, type[Measure]]) -> Table:
    """Return a table of the measures of flatness with their settings and defaults, for a console."""
    titles = ("measure", "settings", "what it is")
    defaults = [", ".join(f"{f.name} = {f.default}" for f in settings(cls)) for cls in measures.values()]
    rows = [(name, text, summary(cls)) for (name, cls), text in zip(measures.items(), defaults, strict=True)]
    return text_table(titles, rows, titles)


def settings(cls: type) -> tuple[Field[Any], ...]:
    """Return the fields of a method, a partition scheme or a measure; each is a dataclass."""
    return fields(cls)


def summary(cls: type[Method] | type[Measure]) -> str:
    """Return the first line of the class's docstring."""
    return documentation(cls).split("\n")[0]


def documentation(cls: type[Method] | type[Partition] | type[Measure]) -> str:
    """Return the class's docstring without indentation."""
    return cleandoc(cls.__doc__ or "")


def costs(cls: type[Method]) -> tuple[int, int, int, int]:
    """Return how many vectors a client receives, sends and keeps, and its gradients per local step.

    The fields of the method have their default values.
    """
    cost = vector_cost(cls())
    return cost.down, cost.up, cost.client, gradients_per_step(cls())

"""The methods of the package, and a user's own, by their facts; torch is imported only where classes must be read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby

from rich import box
from rich.table import Table

from ..core.registry import matching
from .listing import listing, modules
from .method_facts import COSTS, MethodFacts
from .text_table import literal

LEGEND = "down, up, kept: model-sized vectors sent to, sent by and kept at each client; grads: gradients per local step"
IDEA_WIDTH = 200  # characters of a line from which the idea of every method is shown
ARXIV_WIDTH = 100  # characters of a line from which arXiv numbers are shown
LONG = ("idea", "paper")  # columns that wrap if a line is too short for them


@cache
def all_facts() -> list[MethodFacts]:
    """Return the facts of every method of the package, by group, and within a group by the files' names.

    If the folder of methods has other files than when `listing.json` was written, the classes are imported, which takes
    seconds.
    """
    known = listing()["methods"]
    if modules("methods") == known["modules"]:
        return [MethodFacts.from_entry(entry) for entry in known["facts"]]
    from ..methods import all_methods
    from .catalogue import facts_of, grouped

    return [facts_of(cls) for classes in grouped(all_methods().values()).values() for cls in classes]


def facts_named(name: str) -> MethodFacts:
    """Return the facts of a method of the package, or of an own one, whose code is run if that is allowed.

    Raises InputError as `methods.find` does.
    """
    known = {one.name: one for one in all_facts()}
    inside = matching(name, known)
    if inside is not None:
        return known[inside]
    from ..methods import find
    from .catalogue import facts_of

    return facts_of(find(name))


def method_table(methods: Sequence[MethodFacts], width: int) -> Table:
    """Return a table with one line per method, by group. width: characters of a line; a narrow table lacks columns."""
    titles = ["method", *(["idea"] if width >= IDEA_WIDTH else []), *COSTS, "paper"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption=LEGEND)
    for title in titles:
        table.add_column(title, justify="right" if title in COSTS else "left", no_wrap=title not in LONG)
    for group, members in groupby(methods, key=lambda one: one.group):
        table.add_section()
        table.add_row(literal(group, "bold"))
        for one in members:
            shown = [one.name, *([one.idea] if width >= IDEA_WIDTH else []), *(str(one.cost[name]) for name in COSTS)]
            table.add_row(*map(literal, [*shown, one.paper if width >= ARXIV_WIDTH else one.short]))
    return table

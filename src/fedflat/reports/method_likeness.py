"""Which methods are alike, and what differs between two of them, from their facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise

from rich.table import Table

from ..core.errors import InputError
from .method_facts import ROLES, MethodFacts, RecordField, equations
from .text_table import NOTHING, text_table

NEAREST = 10  # methods that are shown
IDEA_WIDTH = 180  # characters of a line from which ideas are shown
BOTH = "both"
PARTS = ("idea", "group", "settings", *ROLES.values(), "cost")  # before the equations
Texts = dict[str, str]  # the texts that are compared, each with a meaning that is shown where only one method has it
COST_WORDS = {
    "down": "model-sized vectors sent to a client",
    "up": "model-sized vectors sent by a client",
    "kept": "model-sized vectors kept by a client",
    "grads": "gradients per local step",
    "passes": "gradients on all samples per round",
}


@dataclass(frozen=True)
class Relative:
    """A method and what it has in common with another one."""

    facts: MethodFacts
    base: str | None  # the nearest class that both are or extend; None if it is `Method`
    alike: frozenset[RecordField]  # fields of records that both have
    fields: frozenset[RecordField]  # fields of records that one of them has


@dataclass(frozen=True)
class ComparedText:
    """What one method has, or both have."""

    part: str  # such as "settings"
    owner: str  # the name of a method, or `BOTH`
    text: str


def relatives(facts: MethodFacts, methods: Sequence[MethodFacts]) -> list[Relative]:
    """Return the other methods, the most similar one first.

    Those come first whose nearest shared class other than `Method` is nearest to this method, then those of whose
    fields of records a larger share is alike, then those of the same group.
    """

    def distance(one: Relative) -> tuple[int, Fraction, bool, int]:
        steps = facts.lineage.index(one.base) if one.base else len(facts.lineage)
        theirs = one.facts.lineage.index(one.base) if one.base else 0
        return steps, -Fraction(len(one.alike), len(one.fields)), one.facts.group != facts.group, theirs

    return sorted((relation(facts, one) for one in methods if one.lineage[0] != facts.lineage[0]), key=distance)


def relation(facts: MethodFacts, other: MethodFacts) -> Relative:
    """Return what `other` has in common with a method."""
    own, theirs = frozenset(facts.records), frozenset(other.records)
    return Relative(other, _shared_class(facts, other), own & theirs, own | theirs)


def _shared_class(facts: MethodFacts, other: MethodFacts) -> str | None:
    return next((base for base in facts.lineage if base in other.lineage), None)


def relatives_table(facts: MethodFacts, methods: Sequence[MethodFacts], width: int, called: str) -> Table:
    """Return a table of the methods that are most similar to one.

    width: characters of a line. called: the method's name on the command line.
    """
    found = relatives(facts, methods)
    ideas = width >= IDEA_WIDTH
    titles = ("method", "shared class", "same fields", "group", *(["idea"] if ideas else []))
    rows = [
        (one.facts.name, _class_name(one.base), f"{len(one.alike)} of {len(one.fields)}", one.facts.group,
         *([one.facts.idea] if ideas else []))
        for one in found[:NEAREST]
    ]  # fmt: skip
    caption = (
        f"the nearest {len(rows)} of {len(found)}: by the class that both are or extend, by fields of records, "
        f"by group ({facts.name}: {facts.group}); fedflat methods {rows[0][0]} --like {called} shows what differs"
    )
    return text_table(
        titles, rows, {*titles} - {"same fields"}, unbroken=titles[:4],
        title=f"methods like {facts.name}", caption=caption,
    )  # fmt: skip


def _class_name(base: str | None, missing: str = NOTHING) -> str:
    return base.rpartition(".")[2] if base else missing


def differences(facts: MethodFacts, other: MethodFacts) -> list[ComparedText]:
    """Return what two methods have, part by part: what both have is one line, anything else names its owner.

    Raises InputError if they are the same method.
    """
    if facts.lineage[0] == other.lineage[0]:
        raise InputError(f"--like {other.name}: this is the method itself; name another one")
    base = _class_name(_shared_class(facts, other), "none but Method")
    ours, theirs = _texts(facts), _texts(other)
    places = [*ours, *(place for place in theirs if place not in ours)]
    order = [*PARTS, *(part for part, _ in places if part not in PARTS)]
    places.sort(key=lambda place: order.index(place[0]))
    found = (_compared(place[0], facts, other, ours.get(place, {}), theirs.get(place, {})) for place in places)
    return [ComparedText("nearest shared class", BOTH, base), *chain.from_iterable(found)]


def _compared(part: str, facts: MethodFacts, other: MethodFacts, ours: Texts, theirs: Texts) -> Iterator[ComparedText]:
    """Yield the lines of one place; a meaning is shown only where methods differ."""
    for text in ours:
        if text in theirs:
            yield ComparedText(part, BOTH, text)
    for name, own, others in ((facts.name, ours, theirs), (other.name, theirs, ours)):
        for text, meaning in own.items():
            if text not in others:
                yield ComparedText(part, name, f"{text}: {meaning}" if meaning else text)


def _texts(facts: MethodFacts) -> dict[tuple[str, str], Texts]:
    """Return the texts of a method by place: a part, such as the settings, and a name in it, such as `rho`.

    Two methods are alike where the texts are equal.
    """
    texts: dict[tuple[str, str], Texts] = {("idea", ""): {facts.idea: ""}, ("group", ""): {facts.group: ""}}
    texts |= {("settings", one.name): {f"{one.name} = {one.default}": one.meaning} for one in facts.settings}
    texts |= {(one.role, one.name): {_field(one): ""} for one in facts.records}
    texts |= {("cost", name): {f"{words}: {facts.cost[name]}": ""} for name, words in COST_WORDS.items()}
    for owner, statements in equations(facts.documentation).items():
        for text in statements:
            texts.setdefault((f"equations, {owner}", _left_side(text)), {})[text] = ""
    return texts


def _field(kept: RecordField) -> str:
    """Return a field, its size in numbers unless it is that of the model, and what it is."""
    size = "" if kept.size == "d" else f" ({kept.size})"
    return f"{kept.name}{size}{f': {kept.meaning}' if kept.meaning else ''}"


def _left_side(statement: str) -> str:
    return re.split(r"<-| = ", statement)[0].strip()


def differences_table(facts: MethodFacts, other: MethodFacts) -> Table:
    """Return a table of what two methods have; a part is named in its first line."""
    lines = differences(facts, other)
    begins = [True, *(line.part != before.part for before, line in pairwise(lines))]
    rows = [(line.part if first else "", line.owner, line.text) for first, line in zip(begins, lines, strict=True)]
    titles = ("", "of", "what")
    return text_table(titles, rows, titles, unbroken=titles[:2], title=f"{facts.name} beside {other.name}")

"""What lists, comparisons and searches of methods know of each: facts that `listing.json` has for every method."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

COSTS = ("down", "up", "kept", "grads")
ROLES = {
    "down": "sent to a client",
    "up": "sent by a client",
    "client": "kept by a client",
    "mean": "averaged by the server",
    "server": "kept by the server",
}
PART = re.compile(r"(\w+) {2,}(\S.*)")  # a line of equations that begins with whose they are, such as `client  w_i <- `


@dataclass(frozen=True)
class HyperParameter:
    """A hyper-parameter."""

    name: str
    default: str
    meaning: str


@dataclass(frozen=True)
class RecordField:
    """A field of a record: what is sent, averaged or kept."""

    role: str  # one of the values of `ROLES`
    name: str
    size: str  # in numbers, d for as many as the model has, with default settings
    meaning: str


@dataclass(frozen=True)
class MethodFacts:
    """A method, as its class declares it."""

    name: str
    group: str
    lineage: tuple[str, ...]  # the class and its bases up to `Method`, by module and name, the nearest first
    documentation: str
    paper: str  # such as `Qu et al., ICML 2022, arXiv:2206.02618`; empty for an own method without a paper
    short: str  # the same without the arXiv number
    title: str  # of the paper
    departures: tuple[str, ...]
    settings: tuple[HyperParameter, ...]
    records: tuple[RecordField, ...]
    # With default settings: `COSTS`, as the lists explain them, and `passes`, gradients on all samples per round.
    cost: dict[str, int]

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> Self:
        """Return the facts of an entry of `listing.json`."""
        lists = {name: tuple(entry[name]) for name in ("lineage", "departures")}
        settings = tuple(HyperParameter(**one) for one in entry["settings"])
        return cls(
            **entry | lists | {"settings": settings, "records": tuple(RecordField(**one) for one in entry["records"])}
        )

    @property
    def idea(self) -> str:
        """The first line of the documentation."""
        return self.documentation.split("\n")[0]


def equations(documentation: str) -> dict[str, list[str]]:
    """Return the statements of the update in a method's documentation by whose they are: client or server."""
    found: dict[str, list[str]] = {}
    paragraphs = [text.split("\n") for text in documentation.split("\n\n")[1:]]
    owner = ""
    for line in next((lines for lines in paragraphs if PART.match(lines[0])), []):
        begins = PART.match(line)
        owner, text = begins.groups() if begins else (owner, line.strip())
        first, *others = re.split(r"; {2,}", text)
        statements = found.setdefault(owner, [])
        if begins or _is_statement(first):
            statements.append(first)
        else:  # the rest of the statement in the line before
            statements[-1] += f" {first}"
        statements += others
    return {owner: [text.rstrip(";") for text in statements] for owner, statements in found.items()}


def _is_statement(text: str) -> bool:
    return "<-" in text or " = " in text

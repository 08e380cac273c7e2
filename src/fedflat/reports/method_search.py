"""Find methods by words in what their classes say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from ..core.errors import InputError
from .method_facts import MethodFacts
from .text_table import text_table


@dataclass(frozen=True)
class Found:
    """A method in which all words were found."""

    facts: MethodFacts
    places: tuple[str, ...]  # in which words were found, such as "docstring"
    excerpt: str  # the line with most of the words


def search(methods: Sequence[MethodFacts], text: str) -> list[Found]:
    """Return the methods that have every word of `text` somewhere in what their classes say; capitals do not matter.

    A word in few lines counts more than one in many. The methods come first whose idea, the first line of the
    docstring, has all words, and then those that have a line with most of them.
    Raises InputError if `text` has no words.
    """
    words = text.lower().split()
    if not words:
        raise InputError("--search: name a word to search for, such as momentum")
    lines = [line for one in methods for some in _places(one).values() for line in some]
    weights = {word: 1 / max(1, sum(word in line.lower() for line in lines)) for word in words}
    found = [_found(one, weights) for one in methods if _has_all(one, words)]
    full = sum(weights.values())
    return sorted(found, key=lambda one: (_weight(one.facts.idea, weights) < full, -_weight(one.excerpt, weights)))


def _has_all(facts: MethodFacts, words: Sequence[str]) -> bool:
    said = "\n".join(line for lines in _places(facts).values() for line in lines).lower()
    return all(word in said for word in words)


def _found(facts: MethodFacts, weights: Mapping[str, float]) -> Found:
    places = {place: [line for line in some if _weight(line, weights)] for place, some in _places(facts).items()}
    excerpt = max((line for some in places.values() for line in some), key=lambda line: _weight(line, weights))
    return Found(facts, tuple(place for place, some in places.items() if some), " ".join(excerpt.split()))


def _weight(line: str, weights: Mapping[str, float]) -> float:
    return sum(weight for word, weight in weights.items() if word in line.lower())


def _places(facts: MethodFacts) -> dict[str, Sequence[str]]:
    """Return the lines that are searched, by where they are."""
    return {
        "name": [facts.name],
        "title": [facts.title],
        "docstring": facts.documentation.split("\n"),
        "departures": facts.departures,
        "settings": [f"{one.name}: {one.meaning}" for one in facts.settings],
        "records": [f"{one.name}: {one.meaning}" for one in facts.records],
    }


def search_table(found: Sequence[Found]) -> Table:
    """Return a table of the methods that were found, each with the places and the line that has most of the words."""
    titles = ("method", "found in", "such as")
    rows = [(one.facts.name, ", ".join(one.places), one.excerpt) for one in found]
    return text_table(titles, rows, titles, unbroken=titles[:1])

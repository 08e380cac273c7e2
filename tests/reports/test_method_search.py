"""Methods are found by words in what their classes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedflat.core.errors import InputError
from fedflat.methods import all_methods
from fedflat.reports.method_facts import HyperParameter, MethodFacts, RecordField
from fedflat.reports.method_list import all_facts
from fedflat.reports.method_search import search

BLANK = MethodFacts("FedX", "flat", ("FedX",), "", "", "", "", (), (), (), {})
PLACES = {
    "name": replace(BLANK, name="FedCantaloupe"),
    "title": replace(BLANK, title="On cantaloupes"),
    "docstring": replace(BLANK, documentation="An idea.\n\nserver  Cantaloupe <- w"),
    "departures": replace(BLANK, departures=("Code has none.", "Its cantaloupe differs.")),
    "settings": replace(BLANK, settings=(HyperParameter("cantaloupe", "1", "a weight"),)),
    "records": replace(BLANK, records=(RecordField("kept by the server", "m", "d", "the last cantaloupe"),)),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_word_is_found_in_every_place_and_the_place_is_named(place: str) -> None:
    [found] = search([BLANK, PLACES[place]], "cantaloupe")
    assert found.facts is PLACES[place]
    assert found.places == (place,)
    assert "cantaloupe" in found.excerpt.lower()


def test_all_words_are_needed_but_not_in_one_place() -> None:
    both = replace(BLANK, title="Apples", departures=("Of pears.",))
    [found] = search([both, PLACES["title"], replace(BLANK, title="Pears")], "PEARS  apples")
    assert found.facts is both
    assert found.places == ("title", "departures")
    assert search([both], "apples quinces") == []


def test_the_line_with_most_words_is_shown_and_methods_with_such_a_line_come_first() -> None:
    apart = replace(BLANK, name="apart", documentation="Of the server.", title="Of momentum")
    together = replace(BLANK, name="together", documentation="Of the server.\n\nThe server's momentum.")
    assert [one.facts.name for one in search([apart, together], "momentum server")] == ["together", "apart"]
    assert search([apart, together], "momentum server")[0].excerpt == "The server's momentum."


def test_methods_whose_idea_has_all_words_come_before_others() -> None:
    aside = replace(BLANK, name="aside", departures=("The quince of the server.",))
    idea = replace(BLANK, name="idea", documentation="A server's quince.\n\nMore.")
    assert [one.facts.name for one in search([aside, idea], "server quince")] == ["idea", "aside"]


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    some = replace(BLANK, title="The server.", departures=("The quince",))
    assert (
        search([some, replace(BLANK, documentation="The server.\nThe server.")], "server quince")[0].excerpt
        == "The quince"
    )


@pytest.mark.parametrize("name", all_methods())
def test_every_method_is_found_by_its_paper_and_name(name: str) -> None:
    """Held against the classes, and not the listing."""
    found = {one.facts.name: one.places for one in search(all_facts(), f"{name} {all_methods()[name].paper.title}")}
    assert {"name", "title"} <= set(found[name])


@pytest.mark.parametrize("text", ["", "  "])
def test_no_words_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--search: name a word"):
        search(all_facts(), text)

"""The command `methods`: a list of all, the page of one, those that are alike, and those that say some words."""

from __future__ import annotations

from typing import Annotated

import typer

from ..core.errors import InputError
from ..reports.method_likeness import differences_table, relatives_table
from ..reports.method_list import all_facts, facts_named, method_table
from ..reports.method_search import search, search_table
from .console import FAILED, Console
from .flag_names import method_names


def methods(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method, e.g. FedSMOO; case, - and _ are ignored. Or your own, my.py:Mine; that file is then run.",
            autocompletion=method_names,
        ),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="List the methods most similar to this one; with NAME, show what differs between the two.",
            autocompletion=method_names,
        ),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(
            "--search",
            metavar="WORDS",
            help="List the methods that have all these words in name, title of the paper, docstring, departures, "
            "settings or records; with NAME, search that one alone.",
        ),
    ] = None,
) -> None:
    """List all methods by group with cost and paper, or print one: equations, fields, cost and BibTeX.

    fedflat methods MoFedSAM --like FedSAM

    shows what differs between two methods: settings, what is sent and kept, cost, and equations.

    fedflat methods --search "momentum server"

    lists the methods that have both words, and where. The exit code is 1 if no method has them.
    """
    from ..core.object_references import allow_code

    context.with_resource(allow_code())  # the user's own command line may name code
    if like is not None and words is not None:
        raise InputError("--like and --search do not go together; give one of them")
    if words is not None:
        return _search(words, name)
    if like is not None:
        return _compare(like, name)
    console = Console()
    if name is None:
        return console.show(method_table(all_facts(), console.width))
    from ..methods import find
    from ..reports.catalogue import describe

    console.say(*describe(find(name)).split("\n"))


def _compare(like: str, name: str | None) -> None:
    """Print the methods like one, or what differs between two."""
    console, other = Console(), facts_named(like)
    if name is None:
        return console.show(relatives_table(other, all_facts(), console.width, called=like))
    console.show(differences_table(facts_named(name), other))


def _search(words: str, name: str | None) -> None:
    """Print the methods that have all `words`; the exit code is 1 if there are none."""
    console = Console()
    found = search([facts_named(name)] if name is not None else all_facts(), words)
    if not found:
        console.say(f"no method has all of these words: {' '.join(words.split())}")
        raise typer.Exit(FAILED)
    console.show(search_table(found))

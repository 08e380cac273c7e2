"""Which method takes which option of a perturbation: the table that `docs/generate.py` writes into the how-to page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

from benchmarks.tables import Table
from docs.method_pages import link
from fedflat.core.hyper import field_types
from fedflat.core.method import Method
from fedflat.core.perturbation import ALONG_GRADIENT
from fedflat.core.wrapper import Wrapper
from fedflat.methods import all_methods


def options_table() -> str:
    """Return a row for each method that takes an option, and for each of its fields that changes what it takes."""
    columns = sorted(ALONG_GRADIENT)
    rows, without, wrappers = [], [], []
    for name, cls in all_methods().items():
        if issubclass(cls, Wrapper):
            wrappers.append(link(name, "../methods/"))
            continue
        found = [(text, method.perturbation_options) for text, method in _variants(cls)]
        if not any(options for _, options in found):
            without.append(link(name, "../methods/"))
            continue
        for text, options in found:
            title = f"{link(name, '../methods/')}{text}"
            rows.append((title, *("yes" if column in options else "no" for column in columns)))
    table = Table(("method", *(f"`{column}`" for column in columns)), rows).markdown()
    return f"{table}\n\n{', '.join(wrappers)}: as the method inside. No option goes with {', '.join(without)}."


def _variants(cls: type[Method]) -> Iterator[tuple[str, Method]]:
    """Yield the method with its defaults, and with each value of one field that changes the options it takes."""
    default = cls()
    yield "", default
    for name, value in _other_values(cls, default):
        method = cls(**{name: value})
        if method.perturbation_options != default.perturbation_options:
            yield f", `{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}`", method


def _other_values(cls: type[Method], default: Method) -> Iterator[tuple[str, Any]]:
    """Yield each field with a list of values, with each value that is not its default."""
    for f in fields(cls):
        kind = field_types(cls)[f.name]
        values = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()
        yield from ((f.name, value) for value in values if value != getattr(default, f.name))

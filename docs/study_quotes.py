"""What README.md, docs/study.md and docs/which_method.md quote of the studies' results, each with its scale."""

from __future__ import annotations

from importlib import import_module
from typing import Any

guidance, joined = (import_module(f"studies.flat-or-tuned.{name}") for name in ("guidance", "joined"))
quotes = import_module("studies.gap-and-flatness.quotes")


def readme(first: Any, second: Any) -> str:
    """Return two lines: what each study found."""
    return "\n".join([
        f"* [Flat, or tuned?](docs/study.md) {joined.outcome(first)} So it says little of "
        f"generalisation. {joined.scale_of(first)}",
        f"* [Does a flat minimum help where there is a gap?](docs/gap_study.md) {quotes.quote(second)}",
    ])  # fmt: skip


def first_study(first: Any, second: Any) -> dict[str, str]:
    """Return what docs/study.md says beside the tables of its study, by mark."""
    return guidance.chapters(first) | joined.chapters(first) | {"second study": quotes.quote(second)}


def second_study(second: Any) -> dict[str, str]:
    """Return what docs/gap_study.md says beside the tables of its study, by mark."""
    return {"scale": quotes.scale_of(second.plan)}


def which_method(first: Any, second: Any) -> dict[str, str]:
    """Return what docs/which_method.md says of both studies, by mark."""
    of_second = {"second study": quotes.quote(second), "second study methods": quotes.methods(second)}
    return guidance.chapters(first) | {"scale": joined.scale_of(first)} | of_second

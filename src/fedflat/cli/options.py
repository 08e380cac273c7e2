"""Options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from ..experiments.studies import Jobs

MAX_SAMPLES = 2000  # as in `metrics.flatness`, which takes seconds to import

KeysOption = Annotated[bool, typer.Option("--keys", help="List every setting that a flag or the file may give.")]
JobsOption = Annotated[
    str,
    typer.Option(
        "--jobs",
        metavar="N|auto",
        help="Runs at a time, each in a process with its share of the cores; auto takes one per core. "
        "The results are the same; the memory of N runs is in use at once.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse to go on with another torch, numpy, fedflat or method's code than the rounds so far; "
        "else that is a warning.",
    ),
]


def number_of_jobs(text: str) -> Jobs:
    """The value of --jobs; anything but a number or `auto` is refused where it is used."""
    return int(text) if text.isdecimal() else cast("Jobs", text)

"""Flags of the commands that carry out runs: how many at a time, and with which versions."""

from __future__ import annotations

from typing import Annotated

import typer

from ..experiments.studies import Jobs

JobsFlag = Annotated[
    str,
    typer.Option(
        "--jobs",
        metavar="N|auto",
        help="Runs at a time, each in a process with its share of the cores; auto takes one per core. "
        "The results are the same; the memory of N runs is in use at once.",
    ),
]


StrictFlag = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse to go on with another torch, numpy, fedflat or method's code than the rounds so far; "
        "else that is a warning.",
    ),
]


def jobs_of(flag: str) -> Jobs:
    """What the flag says; anything but a number or `auto` is refused where it is used."""
    return int(flag) if flag.isdecimal() else flag  # type: ignore[return-value]

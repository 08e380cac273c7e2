"""`fedflat methods`: what there is, and one method in full."""

from __future__ import annotations

from typing import Annotated

import typer

from ..methods import all_methods, find
from ..reports.catalogue import describe, overview
from .console import Console


def register(app: typer.Typer) -> None:
    app.command("methods")(methods)


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, e.g. FedSMOO; case, - and _ are ignored.")] = None,
) -> None:
    """List all methods with their cost and paper, or print one: equations, fields, cost and BibTeX."""
    console = Console()
    if name is None:
        console.show(overview(all_methods(), console.width))
    else:
        console.say(*describe(find(name)).split("\n"))

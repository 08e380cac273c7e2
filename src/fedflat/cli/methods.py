"""`fedflat methods`: all methods, or one in full."""

from __future__ import annotations

from typing import Annotated

import typer

from .completion import method_names
from .console import Console


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="A method, e.g. FedSMOO; case, - and _ are ignored.", autocompletion=method_names),
    ] = None,
) -> None:
    """List all methods with their cost and paper, or print one: equations, fields, cost and BibTeX."""
    from ..methods import all_methods, find
    from ..reports.catalogue import describe, overview

    console = Console()
    if name is None:
        console.show(overview(all_methods(), console.width))
    else:
        console.say(*describe(find(name)).split("\n"))

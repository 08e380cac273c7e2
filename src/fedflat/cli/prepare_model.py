"""`fedflat prepare-model`: fetches a model of the hub before runs that start from it."""

from __future__ import annotations

from typing import Annotated

import typer

from ..core.errors import InputError
from .console import Console


def prepare_model(
    name: Annotated[str, typer.Argument(metavar="hub:OWNER/NAME", help="A repository of the Hugging Face hub.")],
    hub: Annotated[bool, typer.Option("--hub", help="Fetch it from the hub.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="With --hub: the commit to fetch, default the one fetched last.")
    ] = None,
) -> None:
    """Fetch a pretrained model, or say which commit of it is on this machine.

    fedflat prepare-model hub:google/vit-base-patch32-224-in21k --hub

    Model options `path` and `pretrained` may then name it so. No run fetches anything.
    """
    from ..models import fetch
    from ..models.blocks.fetched import folder_of

    if revision is not None and not hub:
        raise InputError(f"--revision {revision} says what to fetch from the hub; give --hub, too")
    folder = fetch(name, revision) if hub else folder_of("path", name)
    Console().say(f"commit {folder.name}, kept in {folder}")

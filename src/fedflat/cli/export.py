"""The command `fedflat export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.object_references import allow_code
from .console import Console
from .run import AllowCodeOption


def export(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    folder: Annotated[Path, typer.Argument(help="The new folder to write to.")],
    code: AllowCodeOption = False,
) -> None:
    """Write a run's model for other programs: an adapter as peft reads it, any other model as safetensors.

    Beside it is load.py, which shows how to load it. A further run can start from an adapter: --adapter.start FOLDER.

    fedflat export runs/news adapters/news
    """
    from ..experiments import export as writing  # here, because it imports torch
    from ..experiments.run_directory import StoredRun

    if code:
        context.with_resource(allow_code())
    for name in writing.export(StoredRun.open(run), folder):
        Console().say(f"wrote {folder / name}")

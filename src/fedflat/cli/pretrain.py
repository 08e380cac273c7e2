"""The command `fedflat pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .completion import source_names
from .console import Console, bar_for_each, usual_columns


def pretrain(
    name: Annotated[str, typer.Argument(help="A set of texts, see `fedflat data list`.", autocompletion=source_names)],
    folder: Annotated[Path, typer.Argument(help="The new folder to write the encoder to.")],
    data_dir: Annotated[
        str | None, typer.Option(help="Folder that holds a folder of this name; default $FEDFLAT_DATA.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Accept fewer samples than the whole set.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the initial weights and the order of batches.")] = 0,
) -> None:
    """Train a small text encoder on half of a set's classes, as a base for adapters if you have no pretrained one.

    fedflat pretrain ag-news ag-news-encoder --data-dir DATA
    fedflat recipes run ours/lora-ag-news --data-dir DATA

    It is a BERT of two layers, trained in a few minutes on the first half of the classes alone; the other half is new
    to whoever trains adapters on it. A pretrained model's folder serves in its place: --model.options.path FOLDER.
    """
    from rich.progress import Progress

    from ..experiments import pretraining  # here, because it imports torch

    console = Console()
    with Progress(*usual_columns(), console=console, transient=True, disable=not console.is_terminal) as bar:
        made = pretraining.pretrain(name, folder, data_dir, partial, seed, bar_for_each(bar, ""))
    learned = "" if made.accuracy is None else f", {100 * made.accuracy:.1f} % of their test texts right"
    console.say(
        f"trained {made.parameters:,} parameters on {made.samples:,} texts of {len(made.classes)} classes{learned}",
        f"wrote {folder}",
    )

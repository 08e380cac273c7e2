"""`fedflat data`: what can be loaded, and what a split is like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..data.facts import partition_facts
from ..data.sources import source_names, source_summary
from ..experiments.spec import RunSpec, federated_data
from ..reports.partition import shade_map, write_partition_map
from .flags import CONTEXT, resolve

app = typer.Typer(help="List data sets; look at a split before training on it.", no_args_is_help=True)


@app.command("list")
def list_sources() -> None:
    """The data sets that `--data.name` accepts."""
    for name in source_names():
        Console().print(f"{name:<16} {source_summary(name)}", highlight=False, soft_wrap=True)


@app.command("partition", context_settings=CONTEXT, options_metavar="[FILE.toml] [--KEY VALUE]...")
def partition(
    context: typer.Context,
    figure: Annotated[Path | None, typer.Option(help="Write the heat map to this SVG file.")] = None,
) -> None:
    """Split a data set and print what the split is really like.

    fedflat data partition --data.name digits --data.clients 50 --partition.name dirichlet --partition.alpha 0.1
    """
    console = Console()
    data = federated_data(resolve(RunSpec, context.args))
    drawn = write_partition_map(data, figure) if figure else None
    console.print(f"{data.name}, {data.partition}, hash {data.partition_hash()}", highlight=False, soft_wrap=True)
    console.print("\n".join(partition_facts(data).lines()), highlight=False)
    console.print(shade_map(data.counts(), console.width), highlight=False, no_wrap=True)
    if drawn:
        console.print(f"heat map: {drawn}", highlight=False, soft_wrap=True)

"""`fedflat data`: which data sets can be loaded, and how a split of one looks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.object_references import allow_code
from ..reports.listing import source_rows
from .completion import SettingsCommand, source_names
from .console import Console
from .flag_names import check_flags

app = typer.Typer(help="List data sets; look at a split before training on it.", no_args_is_help=True)


@app.command("list")
def list_sources() -> None:
    """List the data sets that `--data.name` accepts, and which files each is read from."""
    console = Console()
    for name, summary, files in source_rows():
        console.say(f"{name:<14} {summary}")
        console.say(f"{'':<14} files: {files}", style="dim")


@app.command("prepare")
def prepare_source(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A data set, see `fedflat data list`.", autocompletion=source_names)],
    data_dir: Annotated[
        str | None, typer.Option(help="Folder that holds a folder of this name; default $FEDFLAT_DATA.")
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Fetch the set from the Hugging Face hub into it.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="With --hub: the commit to fetch, default the one fetched last.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Accept fewer samples than the whole set.")] = False,
    image_size: Annotated[int | None, typer.Option(help="Pixels that photographs are resized to.")] = None,
) -> None:
    """Read a set's files, check them, and keep the result for quick starts.

    fedflat data prepare cifar10 --data-dir DATA        (DATA/cifar10 holds parquet, or the original archive)

    Runs do the same by themselves at their first start.
    """
    from ..data.sources import known_source
    from ..files import cache_folder
    from .execution import prepare_set

    console = Console()
    context.with_resource(allow_code())  # a function that the user's own command line names
    loaded = prepare_set(console, known_source(name), data_dir, hub, partial, image_size, revision)
    for part, samples in (("train", loaded.train), ("test", loaded.test)):
        if samples is not None:
            shape = " x ".join(map(str, samples.x.shape[1:]))
            console.say(f"{part:<5} {len(samples.y):,} samples of {shape}")
    for domain in loaded.domains:
        console.say(f"domain {domain}")
    if loaded.contents is not None:
        console.say(f"digest {loaded.contents}, kept in {cache_folder()}")


@app.command("partition", cls=SettingsCommand, options_metavar="[FILE.toml] [--KEY VALUE]...")
def partition(
    context: typer.Context,
    figure: Annotated[Path | None, typer.Option(help="Write the heat map to this SVG file.")] = None,
) -> None:
    """Split a data set and print what the split is really like.

    fedflat data partition --data.name digits --data.clients 50 --partition.name dirichlet --partition.alpha 0.1
    """
    check_flags(context.args)
    from ..experiments.spec import RunSpec, federated_data
    from ..reports.plans import shade_map, split_lines, write_partition_map
    from .execution import prepare_data
    from .flags import resolve

    console = Console()
    context.with_resource(allow_code())  # what the user's own command line and file name
    spec = resolve(RunSpec, context.args)
    prepare_data(console, spec)
    data = federated_data(spec)
    if figure:
        write_partition_map(data, figure)
    console.say(*split_lines(data))
    console.say(*shade_map(data.counts(), console.width))
    if figure:
        console.say(f"heat map: {figure}")

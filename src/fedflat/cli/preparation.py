"""The commands that prepare what runs need: `fedflat data`, `prepare-model` and `pretrain`."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w
import typer

from ..core.errors import InputError, shortened
from ..core.object_references import allow_code
from ..reports.listing import listing
from .console import Console
from .flag_names import SettingsCommand, check_flags, source_names

if TYPE_CHECKING:
    from ..experiments.spec import DataSection

data_app = typer.Typer(
    help="List data sets, prepare one, state how sites read one, or show how one is split.", no_args_is_help=True
)


@data_app.command("list")
def list_sources() -> None:
    """List the data sets that `--data.name` accepts, and the files of each."""
    console = Console()
    for name, summary, files in listing()["sources"]:
        console.say(f"{name:<14} {summary}")
        console.say(f"{'':<14} files: {files}", style="dim")


@data_app.command("prepare")
def prepare_source(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A data set, see `fedflat data list`.", autocompletion=source_names)],
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with a subfolder of this name; default $FEDFLAT_DATA.")
    ] = None,
    hub: Annotated[bool, typer.Option("--hub", help="Fetch the set from the Hugging Face hub.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="With --hub: commit to fetch; default the one fetched last.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Accept a set with missing files or samples.")] = False,
    image_size: Annotated[int | None, typer.Option(help="Height and width of photographs, in pixels.")] = None,
) -> None:
    """Read a set's files, check them, and cache the result.

    fedflat data prepare cifar10 --data-dir DATA        (DATA/cifar10 holds parquet, or the original archive)

    Without this command, the first run that uses the set does the same.
    """
    from ..data.sources import known_source
    from ..files import cache_folder
    from .execution import prepare_set

    console = Console()
    context.with_resource(allow_code())  # the user's own command line may name a function
    loaded = prepare_set(console, known_source(name), data_dir, hub, revision, partial=partial, image_size=image_size)
    for part, samples in (("train", loaded.train), ("test", loaded.test)):
        if samples is not None:
            shape = " x ".join(map(str, samples.x.shape[1:]))
            console.say(f"{part:<5} {len(samples.y):,} samples of {shape}")
    for domain in loaded.domains:
        console.say(f"domain {domain}")
    if loaded.contents is not None:
        console.say(f"digest {loaded.contents}, kept in {cache_folder()}")


@data_app.command("partition", cls=SettingsCommand, options_metavar="[FILE.toml] [--KEY VALUE]...")
def partition(
    context: typer.Context,
    figure: Annotated[Path | None, typer.Option(help="SVG file for a heat map of the split.")] = None,
) -> None:
    """Split a data set and print the properties of the split.

    fedflat data partition --data.name digits --data.clients 50 --partition.name dirichlet --partition.alpha 0.1
    """
    check_flags(context.args)
    from ..experiments.spec import RunSpec, federated_data
    from ..reports.plans import shade_map, split_lines, write_partition_map
    from .execution import prepare_data
    from .flags import resolve

    console = Console()
    context.with_resource(allow_code())  # the user's own command line and file may name code
    spec = resolve(RunSpec, context.args)
    prepare_data(console, spec)
    data = federated_data(spec)
    if figure:
        write_partition_map(data, figure)
    console.say(*split_lines(data))
    console.say(*shade_map(data.counts(), console.width))
    if figure:
        console.say(f"heat map: {figure}")


@data_app.command("schema", cls=SettingsCommand, options_metavar="[FILE.toml] [--KEY VALUE]...")
def write_schema(
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="New TOML file for the settings.")] = Path("schema.toml"),
    words: Annotated[int, typer.Option(min=1, help="Largest number of words in a vocabulary of texts.")] = 10_000,
) -> None:
    """State how all sites read their own files: classes, columns, categories, scaling, colours, vocabulary.

    fedflat data schema --data.name csv --data_dir sites --data.label_columns outcome --out schema.toml

    fedflat flower run schema.toml --client north=sites/north.csv --client south=sites/south.csv

    The settings are taken from all samples in the folder, and are those of a study: every site of a federation gets
    them with the study, and `fedflat run schema.toml --data_dir sites` uses them, too. Read and correct the file: add a
    class or a category that only other sites have.
    """
    check_flags(context.args)
    from ..data.loading import labelled
    from ..data.stated_schema import stated_settings
    from ..experiments.schema import file_table
    from ..experiments.spec import RunSpec
    from ..files import write_text
    from .execution import prepare_data
    from .flags import resolve

    console = Console()
    context.with_resource(allow_code())  # the user's own command line and file may name code
    if out.exists():
        raise InputError(f"--out {out} exists; give the name of a new file")
    spec = resolve(RunSpec, context.args)
    loaded = labelled(prepare_data(console, spec), spec.task, spec.data.name, spec.data.labelling)
    found = stated_settings(loaded, words)
    table: dict[str, Any] = {"data": _given(spec.data) | file_table(found)}
    if spec.loss != "cross-entropy":
        table["loss"] = spec.loss
    if len(loaded.users) > 1:
        table |= {"partition": {"name": "natural"}}
        table["data"]["clients"] = len(loaded.users)
    write_text(out, tomli_w.dumps(table))
    for name, value in found.items():
        console.say(f"{name:<20} {shortened(json.dumps(value, ensure_ascii=False), 100)}")
    console.say(f"wrote {out}")


def _given(data: DataSection) -> dict[str, Any]:
    """Return the settings of a data set that have another value than their default, and its name."""
    from ..experiments.schema import file_table

    given = {one.name: getattr(data, one.name) for one in fields(data)}
    differing = {one.name: given[one.name] for one in fields(data) if given[one.name] != one.default}
    return {"name": data.name, **file_table(differing)}


def pretrain(
    name: Annotated[str, typer.Argument(help="A set of texts, see `fedflat data list`.", autocompletion=source_names)],
    folder: Annotated[Path, typer.Argument(help="New folder for the encoder.")],
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with a subfolder of this name; default $FEDFLAT_DATA.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Accept a set with missing files or samples.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the initial weights and the order of batches.")] = 0,
) -> None:
    """Train a small text encoder on half of a set's classes, as a base for adapters.

    fedflat pretrain ag-news ag-news-encoder --data-dir DATA
    fedflat recipes run ours/lora-ag-news --data-dir DATA

    It is a BERT of two layers, trained in a few minutes on the first half of the classes, so that the other half is new
    when adapters are trained. To use a pretrained model instead, give its folder: --model.options.path FOLDER.
    """
    from ..experiments import pretraining  # here, because it imports torch

    console = Console()
    with console.bars() as progress:
        encoder = pretraining.pretrain(name, folder, data_dir, partial, seed, progress)
    accuracy = "" if encoder.accuracy is None else f", {100 * encoder.accuracy:.1f} % of their test texts right"
    console.say(
        f"trained {encoder.parameters:,} parameters on {encoder.samples:,} texts of {len(encoder.classes)} classes"
        + accuracy,
        f"wrote {folder}",
    )


def prepare_model(
    name: Annotated[str, typer.Argument(metavar="hub:OWNER/NAME", help="A repository of the Hugging Face hub.")],
    hub: Annotated[bool, typer.Option("--hub", help="Fetch it from the hub.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="With --hub: commit to fetch; default the one fetched last.")
    ] = None,
) -> None:
    """Fetch a pretrained model, or print which commit of the model this machine has.

    fedflat prepare-model hub:google/vit-base-patch32-224-in21k --hub

    The model options `path` and `pretrained` then accept this name. Runs never fetch anything.
    """
    from ..models import fetch
    from ..models.blocks.fetched import folder_of

    if revision is not None and not hub:
        raise InputError(f"--revision {revision} needs --hub")
    folder = fetch(name, revision) if hub else folder_of("path", name)
    Console().say(f"commit {folder.name}, kept in {folder}")

"""The commands on models: `fedflat predict`, `export`, `pretrain` and `prepare-model`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..core.object_references import allow_code
from .completion import source_names
from .console import Console
from .results import is_federation
from .run import AllowCodeOption


def predict(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    source: Annotated[
        Path,
        typer.Option("--input", help="x.npz, x.parquet, x.txt with a text a line, a picture, or a folder of pictures."),
    ],
    out: Annotated[Path, typer.Option(help="The new file to write to, .csv or .parquet.")] = Path("predictions.csv"),
    scores: Annotated[bool, typer.Option("--scores", help="Also a column for each score of the model.")] = False,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Also a column for each probability: softmax, or of labels sigmoid.")
    ] = False,
    code: AllowCodeOption = False,
) -> None:
    """Predict what a run's model says of samples that it was not trained on; the data of training are not needed.

    Samples are given as they were for training: an npz has the array x, a parquet file the column image or text, and
    pictures are decoded, resized and scaled in the same way. Samples of another shape, or another kind of numbers, are
    refused. The table has a row for each sample: its path in the folder or its number, and its class, or what else
    the task predicts.

    fedflat predict runs/cats --input pictures --out predictions.csv

    fedflat predict runs/digits --input new.npz --out predictions.parquet --probabilities
    """
    from ..experiments.prediction import predict_file  # here, because it imports torch
    from ..experiments.run_directory import StoredRun

    if code:
        context.with_resource(allow_code())
    if is_federation(run):
        raise InputError(f"{run} holds a federation, whose server does not know what samples its clients have; in "
                         f"Python put {run / 'model.safetensors'} into a model")  # fmt: skip
    console = Console()
    with console.bars(counted=True) as progress:
        number = predict_file(StoredRun.open(run), source, out, scores, probabilities, progress)
    console.say(f"{number:,} predictions: {out}")


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
    from ..experiments import pretraining  # here, because it imports torch

    console = Console()
    with console.bars() as progress:
        made = pretraining.pretrain(name, folder, data_dir, partial, seed, progress)
    learned = "" if made.accuracy is None else f", {100 * made.accuracy:.1f} % of their test texts right"
    console.say(
        f"trained {made.parameters:,} parameters on {made.samples:,} texts of {len(made.classes)} classes{learned}",
        f"wrote {folder}",
    )


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

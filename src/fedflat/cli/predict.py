"""The command `fedflat predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn, Progress

from ..core.errors import InputError
from ..core.object_references import allow_code
from .console import Console, bar_for_each, usual_columns
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
    columns = (*usual_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        number = predict_file(StoredRun.open(run), source, out, scores, probabilities, bar_for_each(bar, ""))
    console.say(f"{number:,} predictions: {out}")

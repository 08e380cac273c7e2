"""`fedflat landscape`: the loss around, and between, the models of finished runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from ..core.object_references import allow_code
from .console import Console
from .results import MAX_SAMPLES
from .run import AllowCodeOption

FoldersArgument = Annotated[list[Path], typer.Argument(help="Finished runs, or studies: every method's first seed.")]
OutOption = Annotated[
    Path | None, typer.Option(help="Folder to write to; default `landscape` in the one run's or study's.")
]
PointsOption = Annotated[int, typer.Option(help="Grid points on each axis, an odd number.")]
RangeOption = Annotated[
    float, typer.Option("--range", help="How far along each random direction, on both sides of the model.")
]
OneDimensionalOption = Annotated[
    bool, typer.Option("--one-dimensional", help="Profiles only: 51 losses instead of 51 x 51.")
]
LocalOption = Annotated[
    int, typer.Option(help="Also the models of this many clients, after one more round that is not taken.")
]
PlaneOption = Annotated[
    bool, typer.Option("--plane", help="Instead of random directions: the plane through the models given.")
]
FeaturesOption = Annotated[
    bool, typer.Option("--features", help="Also a map (t-SNE) of the last layer's inputs on 3000 test samples.")
]
MaxSamplesOption = Annotated[int, typer.Option(help="Training samples that the loss is taken on.")]
SeedOption = Annotated[int, typer.Option(help="Of the random directions and of t-SNE.")]
DataDirOption = Annotated[str | None, typer.Option(help="Folder with the data sets; default the run's.")]


def landscape(
    context: typer.Context,
    folders: FoldersArgument,
    out: OutOption = None,
    points: PointsOption = 51,
    reach: RangeOption = 1.0,
    one_dimensional: OneDimensionalOption = False,
    local: LocalOption = 0,
    plane: PlaneOption = False,
    features: FeaturesOption = False,
    max_samples: MaxSamplesOption = MAX_SAMPLES,
    seed: SeedOption = 0,
    data_dir: DataDirOption = None,
    code: AllowCodeOption = False,
) -> None:
    """Show the loss around the models of finished runs: surfaces to turn, contours, profiles.

    fedflat landscape runs/digits --features

    of a study shows every method side by side, with maps of its features; with `--one-dimensional` in a fiftieth
    of the time.

    fedflat landscape runs/fedavg runs/fedsam --local 2

    shows the models of two clients too, each on its own samples.

    fedflat landscape runs/a runs/b runs/c --plane

    shows the plane on which three models lie.

    Directions are random and filter-normalised (Li et al., 2018), drawn once for all models. Writes landscape.html,
    its figures as SVG, and the numbers (surfaces/*.npz, landscape.json). Finished surfaces are kept: after Ctrl-C,
    the same command goes on.
    """
    from ..experiments.landscapes import LoadedRun, SurfaceSettings, feature_task, plane_task, shown_runs, surface_tasks
    from .landscape_tasks import Task, draw

    if code:
        context.with_resource(allow_code())
    folder = out or (folders[0] / "landscape" if len(folders) == 1 else Path("landscape"))
    with _flags_named():
        settings = SurfaceSettings(points, reach, 1 if one_dimensional else 2, max_samples, seed, local)
        runs = shown_runs(folders, data_dir)
        given = LoadedRun(), runs, settings, folder / "surfaces"
        tasks: list[Task] = [plane_task(*given)] if plane else [*surface_tasks(*given)]
        tasks += [feature_task(given[0], run, seed, given[-1]) for run in runs if features]
    draw(Console(), tasks, runs, folder)


@contextmanager
def _flags_named() -> Iterator[None]:
    """Inside the block, an error that begins with the name of a setting gets the name of its flag."""
    try:
        yield
    except InputError as error:
        name = re.match(r"(points|range|max_samples|seed|local|plane)\b", str(error))
        raise InputError(f"--{name[0].replace('_', '-')}{str(error)[name.end() :]}" if name else str(error)) from error

"""`fedflat landscape`: the loss around and between the models of finished runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from ..core.errors import InputError
from ..core.object_references import allow_code
from .console import Console, counting_columns
from .results import MAX_SAMPLES
from .run import AllowCodeOption

if TYPE_CHECKING:
    from ..experiments.landscapes import Computed, SurfaceTask
    from ..experiments.measuring import ShownRun
    from ..metrics.features import FeatureMap
    from ..metrics.flatness.surface import Surface

LONG = 20.0  # seconds; an estimate is printed for work that takes longer


def landscape(
    context: typer.Context,
    folders: Annotated[list[Path], typer.Argument(help="Finished runs; of a study, every method's first seed.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to; default `landscape` in the folder of a single run or study."),
    ] = None,
    points: Annotated[int, typer.Option(help="Odd number of grid points on each axis.")] = 51,
    reach: Annotated[
        float, typer.Option("--range", help="Largest distance along each random direction, on both sides of the model.")
    ] = 1.0,
    one_dimensional: Annotated[
        bool, typer.Option("--one-dimensional", help="Only profiles along one direction: 51 losses instead of 51 x 51.")
    ] = False,
    local: Annotated[
        int, typer.Option(help="Also show the local models of this many clients after one extra, discarded round.")
    ] = 0,
    plane: Annotated[
        bool, typer.Option("--plane", help="Use the plane through the given models instead of random directions.")
    ] = False,
    features: Annotated[
        bool, typer.Option("--features", help="Also map the last layer's inputs on 3000 test samples (t-SNE).")
    ] = False,
    max_samples: Annotated[int, typer.Option(help="Number of training samples for the loss.")] = MAX_SAMPLES,
    seed: Annotated[int, typer.Option(help="Seed of the random directions and of t-SNE.")] = 0,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets; default the run's.")] = None,
    code: AllowCodeOption = False,
) -> None:
    """Show the loss around the models of finished runs: rotatable surfaces, contours, profiles.

    fedflat landscape runs/digits --features

    shows every method of a study side by side, with maps of its features. `--one-dimensional` takes a fiftieth of the
    time.

    fedflat landscape runs/fedavg runs/fedsam --local 2

    also shows the models of two clients, each on its own samples.

    fedflat landscape runs/a runs/b runs/c --plane

    shows the plane through three models.

    Directions are random and filter-normalised (Li et al., 2018), drawn once for all models. Writes landscape.html,
    its figures as SVG, and their data (surfaces/*.npz, landscape.json). Finished surfaces are kept:
    the same command continues after Ctrl-C.
    """
    from ..experiments.landscapes import SurfaceSettings, feature_task, plane_task, surface_tasks
    from ..experiments.measuring import LoadedRun, shown_runs
    from ..files import writing

    if code:
        context.with_resource(allow_code())
    folder = out or (folders[0] / "landscape" if len(folders) == 1 else Path("landscape"))
    with _flags_named():
        settings = SurfaceSettings(points, reach, 1 if one_dimensional else 2, max_samples, seed, local)
        runs = shown_runs(folders, data_dir)
        given = LoadedRun(), runs, settings, folder / "surfaces"
        tasks: list[SurfaceTask[Any]] = [plane_task(*given)] if plane else [*surface_tasks(*given)]
        tasks += [feature_task(given[0], run, seed, given[-1]) for run in runs if features]
    with writing(folder / "surfaces", f"--out {folder} is being written by another process"):
        _draw(Console(), tasks, runs, folder)


@contextmanager
def _flags_named() -> Iterator[None]:
    """Replace the name of a setting by its flag at the beginning of the message of an error in the block."""
    try:
        yield
    except InputError as error:
        name = re.match(r"(points|range|max_samples|seed|local|plane)\b", str(error))
        raise InputError(f"--{name[0].replace('_', '-')}{str(error)[name.end() :]}" if name else str(error)) from error


def _draw(console: Console, tasks: Sequence[SurfaceTask[Any]], runs: Sequence[ShownRun], folder: Path) -> None:
    """Compute the missing pictures, and write the page, the figures and their data to `folder`."""
    from ..experiments.landscapes import notes_on, title_of, write_index
    from ..metrics.features import FeatureMap
    from ..metrics.flatness.surface import Surface
    from ..reports.surfaces import write_landscape
    from .execution import prepare_data

    left = [task for task in tasks if task.load() is None]
    for spec in {run.spec.data.name: run.spec for run in runs if left}.values():
        prepare_data(console, spec)
    computed = _computed(console, tasks, sum(task.steps for task in left))
    write_index(computed, folder)
    surfaces = [one.picture for one in computed if isinstance(one.picture, Surface)]
    maps = [one.picture for one in computed if isinstance(one.picture, FeatureMap)]
    console.say(f"page: {write_landscape(surfaces, maps, folder, title_of(runs), notes_on(runs))}")


def _computed(console: Console, tasks: Sequence[SurfaceTask[Any]], steps: int) -> list[Computed]:
    """Compute the pictures, show a progress bar over all `steps` points, and print one line per picture."""
    from ..experiments.landscapes import compute

    computed = []
    with Progress(*counting_columns("points"), console=console, transient=True, disable=not console.is_terminal) as bar:
        for one in compute(tasks, _PointProgress(console, bar, steps)):
            how = "kept from before" if one.seconds is None else f"{_in_short(one.picture)}, in {one.seconds:.1f} s"
            console.say(f"{one.task.title}: {how}")
            computed.append(one)
    return computed


def _in_short(picture: Surface | FeatureMap) -> str:
    """Return the size of a feature map, or the losses at the model and at the highest point of a surface."""
    from ..metrics.features import FeatureMap

    if isinstance(picture, FeatureMap):
        return f"{len(picture.points):,} test samples"
    mark = picture.marks[0]
    return f"loss {mark.loss:.4g} at {mark.label}, up to {picture.loss.max():.4g} on the grid"


class _PointProgress:
    """A progress callback: moves one bar over the points of all pictures, and prints a time estimate once."""

    def __init__(self, console: Console, bar: Progress, steps: int) -> None:
        self._console, self._bar, self._steps = console, bar, steps
        self._task = bar.add_task("", total=steps)
        self._first, self._is_estimated = 0.0, False

    def __call__(self, name: str, done: int, total: int) -> None:
        now = monotonic()
        if done <= 1:
            self._first = now  # loading the run and warming up are done
        self._bar.update(self._task, description=name, advance=min(done, 1))
        if done > 5 or (done > 1 and now - self._first > 2):
            self._print_estimate((now - self._first) / (done - 1))

    def _print_estimate(self, seconds: float) -> None:
        """Print the time for all points, at `seconds` each, if this time is long; do nothing after the first call."""
        total = seconds * self._steps
        if not self._is_estimated and total > LONG:
            size, unit = next(((n, unit) for n, unit in ((3600, "h"), (60, "min")) if total >= 2 * n), (1, "s"))
            self._console.say(
                f"about {total / size:.0f} {unit} for {self._steps:,} points, {seconds:.2g} s each; "
                "--points, --max-samples or --one-dimensional make it shorter"
            )
        self._is_estimated = True

"""`fedflat landscape`: the loss around, and between, the models of finished runs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..core.errors import InputError
from ..experiments.interrupt import Interrupted
from ..experiments.landscapes import (
    LoadedRun,
    ShownRun,
    SurfaceSettings,
    SurfaceTask,
    feature_tasks,
    plane_task,
    shown_runs,
    surface_tasks,
)
from ..files import make_folder, write_atomically
from ..metrics.features import FeatureMap
from ..metrics.flatness.subject import MAX_SAMPLES
from ..metrics.flatness.surface import Surface
from ..reports.surfaces import write_landscape
from .console import Console, Described
from .conversion import convert_for

LONG = 20.0  # seconds of work that are worth an estimate


def register(app: typer.Typer) -> None:
    app.command("landscape")(landscape)


def landscape(
    folders: Annotated[list[Path], typer.Argument(help="Finished runs, or studies: every method's first seed.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; default `landscape` in the one run's or study's.")
    ] = None,
    points: Annotated[int, typer.Option(help="Grid points on each axis, an odd number.")] = 51,
    reach: Annotated[
        float, typer.Option("--range", help="How far along each random direction, on both sides of the model.")
    ] = 1.0,
    one_dimensional: Annotated[
        bool, typer.Option("--one-dimensional", help="Profiles only: 51 losses instead of 51 x 51.")
    ] = False,
    local: Annotated[
        int, typer.Option(help="Also the models of this many clients, after one more round that is not taken.")
    ] = 0,
    plane: Annotated[
        bool, typer.Option("--plane", help="Instead of random directions: the plane through the models given.")
    ] = False,
    features: Annotated[
        bool, typer.Option("--features", help="Also a map (t-SNE) of the last layer's inputs on 3000 test samples.")
    ] = False,
    max_samples: Annotated[int, typer.Option(help="Training samples that the loss is taken on.")] = MAX_SAMPLES,
    seed: Annotated[int, typer.Option(help="Of the random directions and of t-SNE.")] = 0,
    data_dir: Annotated[str | None, typer.Option(help="Folder with the data sets; default the run's.")] = None,
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
    console, bench = Console(), LoadedRun()
    folder = out or (folders[0] / "landscape" if len(folders) == 1 else Path("landscape"))
    store = folder / "surfaces"
    with _flags_named():
        settings = SurfaceSettings(points, reach, 1 if one_dimensional else 2, max_samples, seed, local)
        runs = shown_runs(folders, data_dir)
        jobs: list[SurfaceTask[Any]]
        jobs = [plane_task(bench, runs, settings, store)] if plane else [*surface_tasks(bench, runs, settings, store)]
        jobs += feature_tasks(bench, runs, settings, store) if features else []
    make_folder(store)
    _prepare(console, jobs, runs)
    pictures = carry_out(console, jobs)
    surfaces = [picture for picture in pictures if isinstance(picture, Surface)]
    maps = [picture for picture in pictures if isinstance(picture, FeatureMap)]
    _write_index(jobs, pictures, folder / "landscape.json")
    page = write_landscape(surfaces, maps, folder, _title(runs), _notes(runs))
    console.say(f"page: {page}")


def carry_out(console: Console, jobs: Sequence[SurfaceTask[Any]]) -> list[Surface | FeatureMap]:
    """The pictures of all jobs; those computed before are read, the others computed with a bar and kept.

    Raises Interrupted after Ctrl-C, with every finished picture on disk.
    """
    kept = [job.load() for job in jobs]
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("points"), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn(), Described())
    with Progress(*columns, *left, console=console, transient=True, disable=not console.is_terminal) as bar:
        teller = _Teller(console, bar, sum(job.steps for job, old in zip(jobs, kept, strict=True) if old is None))
        try:
            for place, job in enumerate(jobs):
                if kept[place] is None:
                    kept[place] = teller.watch(job)
                else:
                    teller.say(f"{job.title}: kept from before")
        except KeyboardInterrupt as error:
            done = sum(picture is not None for picture in kept)
            where = f"{done} of {len(jobs)} pictures are kept, and the same command computes the others"
            raise Interrupted(signal.SIGINT, where) from error
    return [picture for picture in kept if picture is not None]


class _Teller:
    """Shows how jobs go on, and says early how long all will take if that is long."""

    def __init__(self, console: Console, bar: Progress, steps: int) -> None:
        self._console, self._bar, self._steps = console, bar, steps
        self._task = bar.add_task("", total=steps)
        self._estimated = False

    def watch(self, job: SurfaceTask[Any]) -> Surface | FeatureMap:
        """Have the job done."""
        self._bar.update(self._task, description=job.title)
        began, first = monotonic(), 0.0

        def progress(done: int, total: int) -> None:
            nonlocal first
            now = monotonic()
            first = first or now  # opening the run and warming up are over
            self._bar.update(self._task, advance=1)
            if done > 5 or (done > 1 and now - first > 2):
                self._estimate((now - first) / (done - 1))

        picture: Surface | FeatureMap = job.compute(progress)
        self.say(f"{job.title}: {_words(picture)}, in {monotonic() - began:.1f} s")
        return picture

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.say(line)

    def _estimate(self, each: float) -> None:
        """Print once what `each` seconds a point come to."""
        if not self._estimated and each * self._steps > LONG:
            self.say(
                f"about {_duration(each * self._steps)} for {self._steps:,} points, {each:.2g} s each; "
                "--points, --max-samples or --one-dimensional make it shorter"
            )
        self._estimated = True


def _words(picture: Surface | FeatureMap) -> str:
    if isinstance(picture, FeatureMap):
        return f"{len(picture.points):,} test samples"
    return f"loss {picture.marks[0].loss:.4g} at {picture.marks[0].label}, up to {picture.loss.max():.4g} on the grid"


def _duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@contextmanager
def _flags_named() -> Iterator[None]:
    """Complaints inside the block about a setting name its flag."""
    try:
        yield
    except InputError as error:
        name = re.match(r"(points|range|max_samples|seed|local|plane)\b", str(error))
        raise InputError(f"--{name[0].replace('_', '-')}{str(error)[name.end() :]}" if name else str(error)) from error


def _prepare(console: Console, jobs: Sequence[SurfaceTask[Any]], runs: Sequence[ShownRun]) -> None:
    """Read the data sets with a bar of their own, if anything is to be computed."""
    if any(job.load() is None for job in jobs):
        for spec in {run.spec.data.name: run.spec for run in runs}.values():
            convert_for(console, spec)


def _title(runs: Sequence[ShownRun]) -> str:
    data = dict.fromkeys(run.spec.data.name for run in runs)
    names = ", ".join(run.label for run in runs) if len(runs) <= 4 else f"{len(runs)} models"
    return f"Loss landscape of {names} on {', '.join(data)}"


def _notes(runs: Sequence[ShownRun]) -> list[str]:
    """Where runs differ in more than the method, so that their surfaces are not of one function."""
    notes = []
    for name in ("data", "data_hash", "model"):
        values = dict.fromkeys(str(run.stored.settings[name]) for run in runs)
        if len(values) > 1:
            notes.append(f"Not the same loss: {name} differs between runs ({'; '.join(values)}).")
    return notes


def _write_index(jobs: Sequence[SurfaceTask[Any]], pictures: Sequence[Surface | FeatureMap], path: Path) -> None:
    """What each file of numbers is, for whoever wants to draw them."""
    content = [picture.about() | {"file": str(job.path.relative_to(path.parent))} for job, picture in
               zip(jobs, pictures, strict=True)]  # fmt: skip
    write_atomically(path, lambda file: file.write_text(json.dumps(content, indent=2) + "\n"))

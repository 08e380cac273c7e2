"""The work of `fedflat landscape`: its pictures computed with a progress bar, kept one by one, and put on a page."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from rich.progress import Progress

from ..experiments.interrupt import Interrupted
from ..experiments.landscapes import ShownRun, SurfaceTask
from ..files import locked, make_folder, sweep, write_atomically
from ..metrics.features import FeatureMap
from ..metrics.flatness.surface import Surface
from ..reports.surfaces import write_landscape
from ..rounds.settings import text_of_data, text_of_model
from .console import Console, counting_columns
from .execution import prepare_data

LONG = 20.0  # seconds of work from which an estimate is printed
Task = SurfaceTask[Any]
Picture = Surface | FeatureMap


def draw(console: Console, tasks: Sequence[Task], runs: Sequence[ShownRun], folder: Path) -> None:
    """Compute the pictures that are not kept from before, and write page, figures and numbers to `folder`."""
    make_folder(folder / "surfaces")
    with locked(folder / "surfaces" / ".lock", f"--out {folder} is being written by another process"):
        sweep(folder / "surfaces")
        _draw(console, tasks, runs, folder)


def _draw(console: Console, tasks: Sequence[Task], runs: Sequence[ShownRun], folder: Path) -> None:
    if any(task.load() is None for task in tasks):
        for spec in {run.spec.data.name: run.spec for run in runs}.values():
            prepare_data(console, spec)
    pictures = carry_out(console, tasks)
    about = [picture.about() | {"file": str(task.path.relative_to(folder))} for task, picture in
             zip(tasks, pictures, strict=True)]  # fmt: skip
    write_atomically(folder / "landscape.json", lambda file: file.write_text(json.dumps(about, indent=2) + "\n"))
    surfaces = [picture for picture in pictures if isinstance(picture, Surface)]
    maps = [picture for picture in pictures if isinstance(picture, FeatureMap)]
    names = ", ".join(run.label for run in runs) if len(runs) <= 4 else f"{len(runs)} models"
    data = dict.fromkeys(text_of_data(run.stored.settings["data"]) for run in runs)
    title = f"Loss landscape of {names} on {', '.join(data)}"
    console.say(f"page: {write_landscape(surfaces, maps, folder, title, _notes(runs))}")


def carry_out(console: Console, tasks: Sequence[Task]) -> list[Picture]:
    """The pictures of all tasks; those computed before are read, the others computed with a bar and kept.

    Raises Interrupted after Ctrl-C, with every finished picture on disk.
    """
    kept: list[Picture | None] = [task.load() for task in tasks]
    steps = sum(task.steps for task, old in zip(tasks, kept, strict=True) if old is None)
    bar = Progress(*counting_columns("points"), console=console, transient=True, disable=not console.is_terminal)
    with bar:
        progress = _TaskProgress(console, bar, steps)
        try:
            for place, task in enumerate(tasks):
                if kept[place] is None:
                    kept[place] = progress.carry_out(task)
                else:
                    console.say(f"{task.title}: kept from before")
        except KeyboardInterrupt as error:
            done = sum(picture is not None for picture in kept)
            where = f"{done} of {len(tasks)} pictures are kept, and the same command computes the others"
            raise Interrupted(signal.SIGINT, where) from error
    return [picture for picture in kept if picture is not None]


class _TaskProgress:
    """One bar over the points of all tasks; prints once how long they will take, if that is long."""

    def __init__(self, console: Console, bar: Progress, steps: int) -> None:
        self._console, self._bar, self._steps = console, bar, steps
        self._task = bar.add_task("", total=steps)
        self._is_estimated = False

    def carry_out(self, task: Task) -> Picture:
        """The picture of a task."""
        self._bar.update(self._task, description=task.title)
        began, first = monotonic(), 0.0

        def progress(done: int, total: int) -> None:
            nonlocal first
            now = monotonic()
            first = first or now  # opening the run and warming up are over
            self._bar.update(self._task, advance=1)
            if done > 5 or (done > 1 and now - first > 2):
                self._print_estimate((now - first) / (done - 1))

        picture: Picture = task.compute(progress)
        if isinstance(picture, FeatureMap):
            result = f"{len(picture.points):,} test samples"
        else:
            mark = picture.marks[0]
            result = f"loss {mark.loss:.4g} at {mark.label}, up to {picture.loss.max():.4g} on the grid"
        self._console.say(f"{task.title}: {result}, in {monotonic() - began:.1f} s")
        return picture

    def _print_estimate(self, seconds: float) -> None:
        """Print, the first time only, how long all points take at `seconds` each."""
        whole = seconds * self._steps
        if not self._is_estimated and whole > LONG:
            size, unit = next(((n, unit) for n, unit in ((3600, "h"), (60, "min")) if whole >= 2 * n), (1, "s"))
            self._console.say(
                f"about {whole / size:.0f} {unit} for {self._steps:,} points, {seconds:.2g} s each; "
                "--points, --max-samples or --one-dimensional make it shorter"
            )
        self._is_estimated = True


def _notes(runs: Sequence[ShownRun]) -> list[str]:
    """Where runs differ in more than the method, so that their surfaces are not of one function."""
    notes = []
    texts: dict[str, Callable[[Any], str]] = {"data": text_of_data, "data_hash": str, "model": text_of_model}
    for name, text in texts.items():
        values = dict.fromkeys(text(run.stored.settings[name]) for run in runs)
        if len(values) > 1:
            notes.append(f"Not the same loss: {name} differs between runs ({'; '.join(values)}).")
    return notes

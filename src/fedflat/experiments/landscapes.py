"""Loss surfaces and feature maps of finished runs: the tasks that compute them, and their files."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from ..core.errors import InputError
from ..core.progress import Progress, Steps
from ..data.types import Index
from ..files import write_text
from ..metrics.features import FeatureMap, feature_map
from ..metrics.flatness.subject import MAX_SAMPLES, Subject
from ..metrics.flatness.surface import Surface, grid, losses_on, marks_on, plane_through, random_plane, spanned
from ..rounds.settings import digest, first_difference, text_of_data, text_of_model
from .interrupt import Interrupted
from .measuring import LoadedRun, ShownRun

Picture = TypeVar("Picture", Surface, FeatureMap)
OF_A_PLANE = ("model", "layers", "loss", "data_hash")  # settings that all runs of a plane share
VERSION = 1  # part of every key; it must rise when the computation changes
GLOBAL = "global model"
RANDOM_AXES = ("along direction 1", "along direction 2")
PLANE, LINE = "plane through three models", "line through two models"
LOSS = "mean cross-entropy without weight decay, evaluation mode, on"
PLANE_AXES = ("distance in parameters", "distance in parameters")


@dataclass(frozen=True)
class SurfaceSettings:
    """The settings of surfaces and feature maps."""

    points: int = 51  # on each axis
    reach: float = 1.0  # coordinates along random directions are in [-reach, reach]
    axes: int = 2  # 1 for a profile
    max_samples: int = MAX_SAMPLES
    seed: int = 0  # of random directions, and of t-SNE
    local: int = 0  # number of clients of each run whose local models are shown too

    def __post_init__(self) -> None:
        """Raise InputError, naming the setting, for an invalid value."""
        grid(self.points, self.reach)
        for name, least in (("max_samples", 1), ("seed", 0), ("local", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} = {getattr(self, name)} must be at least {least}")


@dataclass(frozen=True)
class SurfaceTask(Generic[Picture]):
    """The computation of one picture (a surface or a feature map), and the file in which the picture is saved."""

    label: str
    part: str  # what the picture shows, such as "features"
    steps: int  # number of calls of the progress callback
    path: Path
    kind: type[Picture]
    work: Callable[[Steps], Picture]

    @property
    def title(self) -> str:
        """The name of the picture in messages."""
        return f"{self.label}, {self.part}"

    def load(self) -> Picture | None:
        """Read the picture from its file and give it this task's label; None if the file is missing or damaged."""
        try:
            return replace(self.kind.load(self.path), label=self.label) if self.path.exists() else None
        except InputError:
            return None

    def compute(self, progress: Steps) -> Picture:
        """Compute the picture and save it."""
        picture = self.work(progress)
        picture.save(self.path)
        return picture


@dataclass(frozen=True)
class Computed:
    """The picture of a task, and how long its computation took."""

    task: SurfaceTask[Any]
    picture: Surface | FeatureMap
    seconds: float | None  # None if it was computed before


def compute(tasks: Sequence[SurfaceTask[Any]], progress: Progress) -> Iterator[Computed]:
    """Yield the picture of each task in turn: read from its file if it was computed before, else computed and saved.

    progress: called with a task's title, finished steps and number of steps, before the first step and after each.

    Raises Interrupted after Ctrl-C, with every finished picture on disk.
    """
    kept = [task.load() for task in tasks]
    done = sum(picture is not None for picture in kept)
    try:
        for task, old in zip(tasks, kept, strict=True):
            if old is not None:
                yield Computed(task, old, None)
                continue
            began = monotonic()
            progress(task.title, 0, task.steps)
            picture = task.compute(partial(progress, task.title))
            done += 1
            yield Computed(task, picture, monotonic() - began)
    except KeyboardInterrupt as error:
        where = f"{done} of {len(tasks)} pictures are kept, and the same command computes the others"
        raise Interrupted(signal.SIGINT, where) from error


def write_index(computed: Sequence[Computed], folder: Path) -> None:
    """Write landscape.json: what each picture shows, and its file. Raises InputError if it cannot be written."""
    about = [one.picture.about() | {"file": one.task.path.relative_to(folder).as_posix()} for one in computed]
    write_text(folder / "landscape.json", json.dumps(about, indent=2) + "\n")


def title_of(runs: Sequence[ShownRun]) -> str:
    """Return the title of a page about `runs`."""
    names = ", ".join(run.label for run in runs) if len(runs) <= 4 else f"{len(runs)} models"
    data = dict.fromkeys(text_of_data(run.stored.settings["data"]) for run in runs)
    return f"Loss landscape of {names} on {', '.join(data)}"


def notes_on(runs: Sequence[ShownRun]) -> list[str]:
    """Return a note on each difference in data or model between runs; losses of such runs are not comparable."""
    notes = []
    texts: dict[str, Callable[[Any], str]] = {"data": text_of_data, "data_hash": str, "model": text_of_model}
    for name, text in texts.items():
        values = dict.fromkeys(text(run.stored.settings[name]) for run in runs)
        if len(values) > 1:
            notes.append(f"Not the same loss: {name} differs between runs ({'; '.join(values)}).")
    return notes


def surface_tasks(
    loaded: LoadedRun, runs: Sequence[ShownRun], settings: SurfaceSettings, folder: Path
) -> list[SurfaceTask[Surface]]:
    """Return tasks for surfaces in random directions, around the model of every run and some of its local models."""
    return [
        _random_surface_task(loaded, run, settings, folder, client)
        for run in runs
        for client in (None, *run.local_clients(settings.local).tolist())
    ]


def plane_task(
    loaded: LoadedRun, runs: Sequence[ShownRun], settings: SurfaceSettings, folder: Path
) -> SurfaceTask[Surface]:
    """Return the task for the surface on the plane through the models of `runs` and some of their local models."""
    clients = [run.local_clients(settings.local) for run in runs]
    _check_plane(runs, clients, settings)
    label = ", ".join(run.label for run in runs)
    identities = [[run.label, run.identity, chosen.tolist()] for run, chosen in zip(runs, clients, strict=True)]
    sizes = asdict(replace(settings, reach=1.0, seed=0))  # a plane depends on neither of these two
    path = folder / f"plane-{_key('plane', identities, sizes)}.npz"

    part = PLANE if settings.axes > 1 else LINE

    def work(progress: Steps) -> Surface:
        models = _models(loaded, runs, clients)
        sim = loaded.simulation(runs[0])
        subject = Subject(sim.objective, models[runs[0].label], sim.data, settings.max_samples)
        plane, loss = plane_through(models, settings.axes), subject.pooled.loss
        x, y = spanned(plane, models, settings.points)
        through = "; ".join(list(models)[: settings.axes + 1])
        words = (
            f"{LOSS} {subject.samples}; {settings.points} points on each axis of the {part} ({through}); "
            "axes of length one, orthogonal (Garipov et al., 2018), so that distances are those between "
            "parameters; other models are shown at the nearest point, with their own loss"
        )
        losses, marks = losses_on(loss, plane, x, y, progress), marks_on(loss, plane, models)
        return Surface(label, part, PLANE_AXES, x, y, losses, marks, words)

    return SurfaceTask(label, part, settings.points**settings.axes, path, Surface, work)


def _check_plane(runs: Sequence[ShownRun], clients: Sequence[Index], settings: SurfaceSettings) -> None:
    """Raise InputError if there are too few models, or if they differ in architecture or data."""
    found, needed = sum(1 + len(chosen) for chosen in clients), settings.axes + 1
    if found < needed:
        raise InputError(f"plane: {needed} models are needed, and there {'is' if found == 1 else 'are'} {found}; "
                         "give more runs, or local models too")  # fmt: skip
    for run in runs[1:]:
        first, other = ({name: one.stored.settings[name] for name in OF_A_PLANE} for one in (runs[0], run))
        if difference := first_difference(first, other):
            name, ours, theirs = difference
            raise InputError(f"plane: runs must have one model and one data set; {name} is {ours} in "
                             f"{runs[0].label} and {theirs} in {run.label}")  # fmt: skip


def _random_surface_task(
    loaded: LoadedRun, run: ShownRun, settings: SurfaceSettings, folder: Path, client: int | None
) -> SurfaceTask[Surface]:
    """Return the task for a surface around the server's model, or around that of one `client` on its samples."""
    part = GLOBAL if client is None else f"client {client}"
    # A global surface does not depend on the number of local ones.
    decisive = asdict(settings if client is not None else replace(settings, local=0))
    path = folder / f"{run.spec.label}-{part.replace(' ', '-')}-{_key('random', run.identity, client, decisive)}.npz"

    def work(progress: Steps) -> Surface:
        sim, w = loaded.simulation(run), loaded.model(run)
        subject = Subject(sim.objective, w, sim.data, settings.max_samples)
        landscape, samples = subject.pooled, subject.samples
        if client is not None:
            w, landscape = loaded.local(run, run.local_clients(settings.local))[client], subject.client(client)
            samples = f"{len(landscape):,} training samples of this client, after one more round"
        plane = random_plane(landscape.objective, w, settings.axes, settings.seed)
        x = grid(settings.points, settings.reach)
        y = x if settings.axes > 1 else np.zeros(1)
        loss = losses_on(landscape.loss, plane, x, y, progress)
        marks = marks_on(landscape.loss, plane, {"the model": w})
        directions = (
            "two Gaussian directions, orthogonal before each of their filters is"
            if settings.axes > 1
            else "a Gaussian direction, each filter of it"
        )
        words = (
            f"{LOSS} {samples}; {settings.points} points from -{settings.reach:g} to {settings.reach:g} along "
            f"{directions} given the norm of the model's (Li et al., 2018; seed {settings.seed}); biases and "
            "normalisation parameters are not moved"
        )
        return Surface(run.label, part, RANDOM_AXES, x, y, loss, marks, words)

    return SurfaceTask(run.label, part, settings.points**settings.axes, path, Surface, work)


def feature_task(loaded: LoadedRun, run: ShownRun, seed: int, folder: Path) -> SurfaceTask[FeatureMap]:
    """Return the task for a map of the penultimate features of a run's model; `seed` is the seed of t-SNE."""
    path = folder / f"{run.spec.label}-features-{_key('features', run.identity, seed)}.npz"

    def work(progress: Steps) -> FeatureMap:
        sim, w = loaded.simulation(run), loaded.model(run)
        found = feature_map(sim.objective, w, sim.data, run.label, seed=seed)
        progress(1, 1)
        return found

    return SurfaceTask(run.label, "features", 1, path, FeatureMap, work)


def _models(loaded: LoadedRun, runs: Sequence[ShownRun], clients: Sequence[Index]) -> dict[str, Tensor]:
    """Return the server's models of `runs`, then the local models of each run's `clients`, by name."""
    servers: dict[str, Tensor] = {}
    local: dict[str, Tensor] = {}
    for run, chosen in zip(runs, clients, strict=True):
        servers[run.label] = loaded.model(run)
        if len(chosen):
            local |= {f"{run.label}, client {i}": w for i, w in loaded.local(run, chosen).items()}
    return servers | local


def _key(*parts: Any) -> str:
    """Return a digest for the name of a picture's file; pictures with different settings have different digests."""
    return digest([VERSION, *parts], 32)

"""Reading a data set with a progress bar, which the first start of a large set needs."""

from __future__ import annotations

from rich.progress import MofNCompleteColumn, Progress, TaskID

from ..data import prepare
from ..data.dataset import LoadedDataset
from ..experiments.spec import Experiment
from .console import Console, usual_columns


def convert(
    console: Console,
    name: str,
    data_dir: str | None,
    hub: bool,
    partial: bool,
    image_size: int | None,
    revision: str | None = None,
) -> LoadedDataset:
    """The set `name`, converted if it was not yet; the bar disappears when it is done."""
    with Progress(*usual_columns(), MofNCompleteColumn(), console=console, transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def advance(part: str, done: int, total: int) -> None:
            if part not in tasks:
                tasks[part] = bar.add_task(f"{name} {part}", total=total)
            bar.update(tasks[part], completed=done)

        return prepare(name, data_dir, hub, partial, image_size, advance, revision)


def convert_for(console: Console, spec: Experiment) -> None:
    """The set of an experiment, so that the rounds need not wait for it."""
    convert(console, spec.data.name, spec.data_dir, False, spec.data.partial, spec.data.image_size)

"""What the papers' recipes cost at full protocol: processor seconds of a gradient, times the gradients of every cell.

    OMP_NUM_THREADS=1 python -m benchmarks.recipe_costs        # writes docs/recipe_costs.json; some minutes

For every kind of cell, a data set with a model and a batch size, some gradients of a random batch and some evaluations
are timed in processor seconds of one thread; other work on the machine makes them longer, but by less than times by the
clock. Nothing is trained, no data are read. A method's other work, loading of data and measures are left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch

from fedflat.core.objective import Batch, Objective
from fedflat.experiments.budget import Budget, Speed, budget_of_runs
from fedflat.experiments.recipe import Cell, Recipe, all_recipes
from fedflat.experiments.spec import RunSpec
from fedflat.models import build

from .tables import Table

FILE = Path(__file__).parents[1] / "docs" / "recipe_costs.json"
CALLS, SECONDS = 20, 10.0  # of each timing at most; at least two calls, the first of which is not counted
Kind = tuple[str, str, int]  # data set, model, batch size


def main() -> None:
    """Measure every kind, and write the file."""
    torch.set_num_threads(1)
    found = []
    for kind, spec in kinds().items():
        speed = speed_of(spec)
        found.append(dict(zip(("data", "model", "batch_size"), kind, strict=True)) | vars(speed))
        print(*kind, f"{speed.gradient:.4g} s a gradient, {speed.evaluation:.4g} s a sample evaluated", flush=True)
    content = {"machine": f"{os.cpu_count()} shared CPU cores", "torch": torch.__version__, "kinds": found}
    FILE.write_text(json.dumps(content, indent=2) + "\n")


def cells() -> list[tuple[Cell, list[RunSpec]]]:
    """Return every cell of a paper's recipe that trains, with its runs; building them takes some seconds."""
    return [one for recipe in paper_recipes() for one in cells_of(recipe)]


def paper_recipes() -> list[Recipe]:
    """Return every recipe of a paper that trains."""
    return [one for one in all_recipes().values() if one.base.paper != "fedflat" and one.item.kind == "training"]


@cache
def cells_of(recipe: Recipe) -> list[tuple[Cell, list[RunSpec]]]:
    """Return every cell of a recipe with its runs."""
    return [(cell, cell.study().runs()) for cell in recipe.cells()]


@cache
def budgets_of(recipe: Recipe) -> list[Budget]:
    """Return what all runs of each cell cost."""
    return [budget_of_runs(runs) for _, runs in cells_of(recipe)]


def kind_of(spec: RunSpec) -> Kind:
    """Return what the speed of a run depends on."""
    return spec.data.name, spec.model.name, spec.client.batch_size or 0


def kinds() -> dict[Kind, RunSpec]:
    """Return a run of every kind of cell."""
    return {kind_of(runs[0]): runs[0] for _, runs in cells()}


def speed_of(spec: RunSpec) -> Speed:
    """Return processor seconds of a gradient of a batch, and of evaluating one sample."""
    known, size = spec.known_data, spec.client.batch_size or 1
    shape = known.sample_shape(spec.sample_format)
    pixels = torch.randint(0, 256, (size, *shape))
    batch = Batch(pixels if known.vocabulary_size else pixels / 255, torch.zeros(size, dtype=torch.int64))
    objective = Objective(build(spec.model.name, known.classes, shape))
    w = objective.space.flatten(objective.module)
    gradient = seconds(lambda: objective.gradient(w, batch))
    with torch.inference_mode(), objective.evaluating():
        return Speed(gradient, seconds(lambda: objective.logits(w, batch.x)) / size)


def seconds(work: Callable[[], object]) -> float:
    """Return the median of the processor seconds."""
    found: list[float] = []
    while len(found) < 2 or (len(found) <= CALLS and sum(found) < SECONDS):
        before = process_time()
        work()
        found.append(process_time() - before)
    return median(found[1:])


def speeds_of(measured: dict[str, Any]) -> dict[Kind, Speed]:
    """Return the speed of every kind in the file's content."""
    return {
        (one["data"], one["model"], one["batch_size"]): Speed(one["gradient"], one["evaluation"])
        for one in measured["kinds"]
    }


def page_part(measured: dict[str, Any]) -> str:
    """Return the tables of docs/recipes.md: kinds, and recipes by kind, with the cheapest cell of each."""
    speeds = speeds_of(measured)
    machine = f"Measured on {measured['machine']}, one thread, torch {measured['torch']}, in processor seconds."
    titles = ("data", "model", "batch", "seconds a gradient", "ms a sample evaluated")
    first = Table(titles, [(*map(str, kind), f"{speed.gradient:.3g}", f"{1000 * speed.evaluation:.3g}")
                           for kind, speed in sorted(speeds.items())])  # fmt: skip
    titles = ("recipe", "data, model", "cells", "runs", "core hours", "cheapest cell", "its core hours")
    return "\n\n".join([machine, first.markdown(), Table(titles, list(_rows(speeds))).markdown()])


def _rows(speeds: dict[Kind, Speed]) -> Iterator[tuple[str, ...]]:
    """Return a row for every recipe and kind of its cells that was measured."""
    groups: dict[tuple[str, str], list[tuple[float, str, int]]] = {}
    for recipe in paper_recipes():
        for (cell, runs), budget in zip(cells_of(recipe), budgets_of(recipe), strict=True):
            data, model, batch_size = kind_of(runs[0])
            if (data, model, batch_size) in speeds:
                hours = speeds[data, model, batch_size].seconds(budget) / 3600
                groups.setdefault((recipe.name, f"{data}, {model}"), []).append((hours, cell.name, len(runs)))
    for (recipe, kind), some in groups.items():
        least = min(some)
        number, every = sum(runs for *_, runs in some), sum(hours for hours, *_ in some)
        yield recipe, kind, str(len(some)), str(number), f"{every:,.0f}", f"`{least[1]}`", f"{least[0]:,.1f}"


if __name__ == "__main__":
    main()

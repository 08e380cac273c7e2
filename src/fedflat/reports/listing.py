"""What `fedflat methods`, `recipes list`, `data list` and the shell's completion show, read without torch.

`docs/generate.py` writes `listing.json`; its content is computed from the classes by `docs/package_listing.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from rich.table import Table

from ..core.errors import InputError
from ..files import SPEEDS, cache_folder, read_json
from .text_table import text_table

PACKAGE = Path(__file__).parent.parent
FILE = Path(__file__).with_name("listing.json")
RECIPE_LEGEND = (
    "at full scale: gradients are minibatch gradients of all clients and methods, GB goes both ways; hours are "
    "those of gradients and evaluations one after another, from 20 steps measured once per model, batch size and "
    "device; measures of flatness come on top"
)
Row = Sequence[str]


@cache
def listing() -> dict[str, Any]:
    """Return the content of `listing.json`."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def modules(folder: str) -> list[str]:
    """Return the names of the modules in a folder of the package, in alphabetical order."""
    return sorted(file.stem for file in (PACKAGE / folder).glob("*.py") if file.stem != "__init__")


def recipe_names() -> list[str]:
    """Return the names of the recipes, e.g. fedgf/table1, in the order of their files."""
    files = sorted((PACKAGE / "experiments" / "recipes").glob("*/*.toml"))
    return [f"{file.parent.name}/{file.stem}" for file in files if file.stem != "base"]


def paper_names() -> list[str]:
    """Return the names of the papers that recipes are from."""
    return sorted({name.partition("/")[0] for name in recipe_names()})


def recipe_rows(paper: str | None = None, calibrate: bool = False) -> list[Row]:
    """Return the rows of `recipe_table` for all recipes, or for those of one paper.

    Rows are read from `listing.json`. A row is computed instead, which takes seconds, if this machine may know more,
    such as hours. With `calibrate`, all rows are computed and unknown speeds are measured. Raises InputError for a
    paper without recipes.
    """
    papers = paper_names()
    if paper is not None and paper not in papers:
        raise InputError(f"there is no paper {paper!r}; known are {', '.join(papers)}")
    names = [name for name in recipe_names() if paper in (None, name.partition("/")[0])]
    known, speeds = {entry["row"][0]: entry for entry in listing()["recipes"]}, _known_speeds()
    live = {name for name in names if calibrate or name not in known or _is_more_known(known[name], speeds)}
    if not live:
        return [entry["row"] for name, entry in known.items() if name in names]
    from ..experiments.recipe import all_recipes
    from .plans import recipe_row

    wanted = {name: recipe for name, recipe in all_recipes().items() if name in names}
    return [recipe_row(recipe, calibrate) if name in live else known[name]["row"] for name, recipe in wanted.items()]


def recipe_table(rows: Sequence[Row]) -> Table:
    """Return a table with one line per recipe: its cells and cost, with hours if the speed here is known."""
    titles = ("recipe", "covers", "cells", "runs", "gradients", "GB sent", "hours here")
    return text_table(titles, rows, ("recipe", "covers"), unbroken=("recipe",), caption=RECIPE_LEGEND)


def _known_speeds() -> list[str]:
    """Return the keys of the measured speeds (model and machine); none if the file is damaged."""
    with suppress(InputError):
        speeds = read_json(cache_folder() / SPEEDS)
        return list(speeds) if isinstance(speeds, dict) else []
    return []


def _is_more_known(entry: dict[str, Any], speeds: Sequence[str]) -> bool:
    """Tell whether the row of a recipe may have more here than in `listing.json`.

    That is the case if the files of the recipe's model are on this machine, or if the speed of each of its models on
    this machine is known.
    """
    if entry["files"] is not None:
        return Path(entry["files"]).expanduser().exists()
    models = entry["models"]
    return bool(models) and all(any(speed.startswith(f"{model} ") for speed in speeds) for model in models)

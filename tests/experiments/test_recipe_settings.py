"""The settings of every recipe against a transcription of the papers that was not made from the recipes."""

from __future__ import annotations

import re
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fedflat.data.selection import DataOptions
from fedflat.experiments.recipe import Cell, Recipe, all_recipes
from fedflat.experiments.spec import StudySpec
from fedflat.methods import find
from fedflat.rounds.local_training import Client

STATED: dict[str, Any] = tomllib.loads((Path(__file__).parent / "recipe_settings.toml").read_text())
OPTIONS = {
    option
    for paper in STATED.values()
    for recipe in paper["recipes"].values()
    for axes in recipe["cells"]
    for axis in axes
    for option in axis.split()
} | {"otherwise"}
SECTIONS = {
    "client": set(Client.__dataclass_fields__),
    "data": {*DataOptions.__dataclass_fields__, "clients"},
    "partition": {"alpha", "classes_per_client", "stratified"},
}
NAMES = {"data": "data", "model": "model", "scheme": "partition"}  # a setting that is the name in a section
NOTHING = object()


# --- reading the transcription ----------------------------------------------------------------------------------------


def resolved(value: Any, options: tuple[str, ...]) -> Any:
    """What `value` is in a cell with these options; NOTHING if it says nothing of such a cell."""
    if not isinstance(value, dict) or not all(part in OPTIONS for key in value for part in key.split(",")):
        return value
    fitting = [key for key in value if set(key.split(",")) <= set(options)]
    assert len(fitting) <= 1, f"{fitting} are stated for the same cell"
    return value[fitting[0]] if fitting else value.get("otherwise", NOTHING)


def row(table: dict[str, Any], options: tuple[str, ...]) -> dict[str, Any]:
    """The stated values of a cell."""
    values = {name: resolved(value, options) for name, value in table.items()}
    return {name: value for name, value in values.items() if value is not NOTHING}


def cells(products: list[list[str]]) -> list[tuple[str, ...]]:
    return [options for axes in products for options in product(*(axis.split() for axis in axes))]


def section_of(name: str) -> str | None:
    return next((section for section, fields in SECTIONS.items() if name in fields), None)


def settings(recipe: Recipe, options: tuple[str, ...]) -> dict[str, Any]:
    """A study's settings as the paper states them, by section."""
    paper = STATED[recipe.paper]
    own = paper["recipes"][recipe.name.split("/")[1]].get("settings", {})
    nested: dict[str, Any] = {}
    for name, value in row(paper["settings"] | own, options).items():
        if name == "pretrained":
            nested.setdefault("model", {})["options"] = {name: value} if value else {}
        elif name in NAMES:
            nested.setdefault(NAMES[name], {})["name"] = value
        elif section := section_of(name):
            nested.setdefault(section, {})[name] = value
        else:
            nested[name] = value
    return nested


def method(recipe: Recipe, label: str, options: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The hyper-parameters of a method by the paper, its name among them, and the client settings of it alone."""
    paper = STATED[recipe.paper]
    own = paper["recipes"][recipe.name.split("/")[1]]
    name = re.match(r"\w+", label)[0]
    written = {key: parsed(text) for key, text in re.findall(r"(\w+)=([\w.]+)", label)}
    stated = {key: some for key, some in paper["methods"]["every"].items() if hasattr(find(name)(), key)}
    stated |= paper["methods"].get(name, {}) | own.get("row", {}).get(name, {}) | own.get("variant", {}).get(label, {})
    client = row(paper["methods"].get(name, {}).get("client", {}) | stated.pop("client", {}), options)
    return {"name": name, **row(stated, options), **written}, client


def parsed(text: str) -> bool | float:
    return text == "True" if text in ("True", "False") else float(text)


# --- comparing --------------------------------------------------------------------------------------------------------


def flat(table: Any, above: str = "") -> dict[str, Any]:
    """Nested tables as one, by dotted names."""
    if not isinstance(table, dict):
        return {above: table}
    parts = (flat(value, f"{above}.{name}" if above else name) for name, value in table.items())
    return {name: value for part in parts for name, value in part.items()}


def everything(study: StudySpec, labels: list[str]) -> dict[str, Any]:
    """All settings of a study, with those of each method's clients, by dotted names that begin with a label or not."""
    dumped = study.model_dump()
    shared, of_methods = dumped.pop("client"), dumped.pop("client_of")
    hyper = {label: dict(one) for label, one in zip(labels, dumped.pop("methods"), strict=True)}
    for values in hyper.values():
        values["client"] = {**shared, **of_methods.get(values["name"], {})}
    return flat(dumped | hyper)


def expected(recipe: Recipe, labels: list[str], options: tuple[str, ...]) -> dict[str, Any]:
    """All settings of a cell as the paper states them, the others at their defaults."""
    stated = [method(recipe, label, options) for label in labels]
    own = {hyper["name"]: client for hyper, client in stated if client}
    return everything(
        StudySpec(**settings(recipe, options), methods=[hyper for hyper, _ in stated], client_of=own), labels
    )


def wrong(cell: Cell, labels: list[str]) -> dict[str, tuple[Any, Any]]:
    """The settings of a cell that are not the paper's, with both values."""
    paper, ours = expected(cell.recipe, labels, cell.options), everything(cell.study(), labels)
    return {name: (paper.get(name), ours.get(name)) for name in paper | ours if paper.get(name) != ours.get(name)}


# Our own experiments have no paper that states their settings.
OF_PAPERS = [recipe for recipe in all_recipes().values() if recipe.base.paper != "fedflat"]


def test_every_recipe_has_a_row_and_every_row_a_recipe() -> None:
    rows = {f"{paper}/{name}" for paper, stated in STATED.items() for name in stated["recipes"]}
    assert rows == {recipe.name for recipe in OF_PAPERS}


@pytest.mark.parametrize("recipe", OF_PAPERS, ids=lambda recipe: recipe.name)
def test_a_recipe_has_the_papers_settings(recipe: Recipe) -> None:
    stated = STATED[recipe.paper]["recipes"][recipe.name.split("/")[1]]
    assert recipe.item.use == stated["methods"]
    there = recipe.cells()
    assert sorted(cell.options for cell in there) == sorted(cells(stated["cells"]))
    assert {cell.name: found for cell in there if (found := wrong(cell, labels_of(cell, stated)))} == {}


def labels_of(cell: Cell, stated: dict[str, Any]) -> list[str]:
    """The labels of the methods that the paper shows in a cell."""
    absent = {name for option in cell.options for name in stated.get("without", {}).get(option, [])}
    return [label for label in cell.recipe.item.use if re.match(r"\w+", label)[0] not in absent] or ["FedAvg"]

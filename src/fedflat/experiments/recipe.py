"""Recipes: TOML files with the settings and the published numbers of experiments in papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ..core.errors import InputError
from ..files import read_toml
from ..methods import plain
from ..models.blocks.fetched import folder_of
from .config_errors import validated
from .schema import Section
from .settings_tables import merged
from .spec import RunSpec, StudySpec

Number = float | list[float]  # a mean, or a mean and its spread
Absent = Literal["failed", "not reached", "not readable"]  # not readable: in our copy of the paper
FOLDER = Path(__file__).parent / "recipes"


class Layer(Section):
    """Settings of a study, and hyper-parameters of its methods by label, which override those of earlier layers."""

    study: dict[str, Any] = Field(default={})
    methods: dict[str, dict[str, Any]] = Field(default={})


class Option(Layer):
    """One option of an axis, such as a data set of the axis `data`; every cell has one option of each axis."""

    only_with: list[str] = Field(default=[], description="combined only with one of these other options")


class When(Layer):
    """A layer for the cells that have all options in `cell`."""

    cell: list[str]
    without: list[str] = Field(default=[], description="labels of methods that the paper does not show in these cells")


class Published(Section):
    """Numbers that the paper prints."""

    cell: list[str] = Field(default=[], description="for every cell with all these options")
    quantity: str = Field(description="what the numbers are, e.g. test accuracy %")
    where: str = Field(description="where the paper prints them")
    mean_over_cells: bool = Field(default=False, description="whether the numbers are means over these cells")
    values_by_method: dict[str, Number] = Field(alias="values", description="mean, or mean and spread")
    absent: dict[str, Absent] = Field(default={}, description="why a method of the table has no number")
    warning: str | None = Field(default=None, description="what contradicts these numbers")


class PublishedFile(Section):
    """All numbers that the paper prints for one recipe."""

    read: str = Field(description="the document that the numbers were read from")
    blocks: list[Published] = Field(alias="published")


class Base(Layer):
    """The common settings of the recipes of one paper."""

    paper: str
    title: str
    notes: list[str] = Field(default=[])
    options: dict[str, dict[str, Option]] = Field(default={})
    when: list[When] = Field(default=[])


class Item(Layer):
    """One table or figure."""

    title: str
    items: list[str] = Field(min_length=1)
    kind: Literal["training", "partition"] = "training"
    use: list[str] = Field(default=[], description="labels of the methods, in the paper's order")
    axes: dict[str, list[str]] = Field(default={})
    notes: list[str] = Field(default=[])
    options: dict[str, dict[str, Option]] = Field(default={})
    when: list[When] = Field(default=[])


@dataclass(frozen=True, eq=False)
class Recipe:
    """A table or figure of a paper as an experiment."""

    name: str  # e.g. fedgf/table1
    base: Base
    item: Item

    @property
    def paper(self) -> str:
        """The paper's name among the recipes, e.g. fedgf."""
        return self.name.split("/")[0]

    @cached_property
    def published(self) -> PublishedFile | None:
        """The numbers that the paper prints; None without a file. Raises InputError for an invalid file."""
        file = FOLDER / self.paper / "published" / f"{self.name.split('/')[1]}.toml"
        if not file.exists():
            return None
        try:
            return validated(PublishedFile, read_toml(file))
        except InputError as error:
            raise InputError(f"recipe {self.name}, published numbers: {error}") from error

    def cells(self, chosen: str | None = None) -> list[Cell]:
        """Return all cells, or those with every option in `chosen`, e.g. `cifar10,alpha-0`.

        Raises InputError if `chosen` names an option that the recipe lacks, or if no cell has all options in it.
        """
        cells = []
        for options in product(*self.item.axes.values()):
            needed = [self.option(axis, name).only_with for axis, name in zip(self.item.axes, options, strict=True)]
            if all(not others or set(others) & set(options) for others in needed):
                cells.append(Cell(self, options))
        wanted = set(filter(None, (part.strip() for part in (chosen or "").split(","))))
        known = {option for cell in cells for option in cell.options}
        if wanted - known:
            names = ", ".join(sorted(known)) or "none"
            raise InputError(f"--cell {chosen}: {self.name} has no option {min(wanted - known)!r}; it has {names}")
        found = [cell for cell in cells if wanted <= set(cell.options)]
        if not found:
            raise InputError(f"--cell {chosen}: {self.name} has no cell with all these options")
        return found

    def option(self, axis: str, name: str) -> Option:
        """Return the option `name` of `axis`, from the item or, if the item lacks it, from the base."""
        for options in (self.item.options, self.base.options):
            if name in options.get(axis, {}):
                return options[axis][name]
        raise InputError(f"recipe {self.name}: axis {axis!r} has no option {name!r}")


@dataclass(frozen=True, eq=False)
class Cell:
    """One study of a recipe, with one option of every axis."""

    recipe: Recipe
    options: tuple[str, ...]

    @property
    def name(self) -> str:
        """The options joined by commas; `all` if the recipe has only one cell."""
        return ",".join(self.options) or "all"

    @property
    def published(self) -> list[Published]:
        """The numbers that the paper prints for this cell."""
        printed = self.recipe.published.blocks if self.recipe.published else []
        return [one for one in printed if set(one.cell) <= set(self.options) and not one.mean_over_cells]

    @property
    def labels(self) -> list[str]:
        """The labels of the methods that the paper shows in this cell, in its order; none if FedAvg is trained."""
        absent = {label for when in self._whens() for label in when.without}
        unknown = sorted(absent - set(self.recipe.item.use))
        if unknown:
            raise InputError(f"recipe {self.recipe.name}: without names {unknown[0]!r}, which is not in use")
        return [label for label in self.recipe.item.use if label not in absent]

    def study(self, scale: float = 1.0, data_dir: str | None = None, only: Sequence[str] | None = None) -> StudySpec:
        """Return the study; `rounds`, `last` and `probe_every` are multiplied by `scale`.

        only: labels of the methods to compare; by default all methods of the cell.

        Raises InputError, naming the field, if the study is not valid, and for a method that the cell lacks.
        """
        layer = self._merged()
        table: dict[str, Any] = {**layer["study"], "methods": self._methods(layer["methods"], only)}
        spec = validated(StudySpec, table)
        shorter = {"rounds": max(1, round(scale * spec.rounds)), "last": max(1, round(scale * spec.last)),
                   "probe_every": max(1, round(scale * spec.probe_every))}  # fmt: skip
        return spec.model_copy(update=shorter | {"data_dir": data_dir})

    def _methods(self, known: Mapping[str, Mapping[str, Any]], only: Sequence[str] | None) -> list[dict[str, Any]]:
        """Return the settings tables of this cell's methods, or only of its methods with labels in `only`.

        Case, `-` and `_` of the labels in `only` do not matter. For a cell without methods, the table of FedAvg is
        returned.
        """
        labels = self.labels
        missing = [label for label in labels if label not in known]
        if missing:
            raise InputError(f"recipe {self.recipe.name}: use names {missing[0]!r}, which has no [methods] table")
        chosen = [plain(label) for label in (labels if only is None else only)]
        for wanted in only or ():
            if plain(wanted) not in map(plain, labels):
                names = ", ".join(labels) or "none"
                raise InputError(f"--only {wanted}: {self.recipe.name} has no such method; it has {names}")
        used = [dict(known[label]) for label in labels if plain(label) in chosen]
        return used or [{"name": "FedAvg"}]

    def _whens(self) -> list[When]:
        """Return the layers that apply to this cell."""
        every = (*self.recipe.base.when, *self.recipe.item.when)
        return [when for when in every if set(when.cell) <= set(self.options)]

    def _merged(self) -> dict[str, Any]:
        """Merge the layers of this cell; return the tables `study` and `methods`."""
        recipe, study, methods = self.recipe, dict[str, Any](), dict[str, dict[str, Any]]()
        chosen = [recipe.option(axis, name) for axis, name in zip(recipe.item.axes, self.options, strict=True)]
        for layer in (recipe.base, recipe.item, *chosen, *self._whens()):
            study = merged(StudySpec, study, layer.study)
            for label, table in layer.methods.items():
                before = {"name": label, **methods.get(label, {})}
                methods[label] = merged(RunSpec, {"method": before}, {"method": table})["method"]
        return {"study": study, "methods": methods}


def check_model_files(study: StudySpec) -> None:
    """Raise InputError if the study starts from pretrained weights that are not on this machine."""
    if "pretrained" in study.model.options:
        folder_of("pretrained", str(study.model.options["pretrained"]))


@cache
def all_recipes() -> dict[str, Recipe]:
    """Return every recipe by name, sorted by paper and item. Raises InputError for an invalid file."""
    recipes = {}
    for base in sorted(FOLDER.glob("*/base.toml")):
        for file in sorted(set(base.parent.glob("*.toml")) - {base}, key=_number_order):
            name = f"{base.parent.name}/{file.stem}"
            try:
                recipes[name] = Recipe(name, validated(Base, read_toml(base)), validated(Item, read_toml(file)))
            except InputError as error:
                raise InputError(f"recipe {name}: {error}") from error
    return recipes


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name`, such as `fedgf/table1`.

    Raises InputError for an unknown name. Its message lists the recipes of the paper that `name` begins with or, if
    `name` begins with no paper, all papers.
    """
    recipes = all_recipes()
    if name in recipes:
        return recipes[name]
    of_paper = [known for known, recipe in recipes.items() if name.startswith(recipe.paper)]
    papers = sorted({recipe.paper for recipe in recipes.values()})
    known = ", ".join(of_paper) if of_paper else f"those of {', '.join(papers)}; see `fedflat recipes list`"
    raise InputError(f"recipe {name!r} is unknown; known are {known}")


def _number_order(path: Path) -> tuple[str, int]:
    """Return a sorting key: the letters of a file's name, then its number, so that figure2 comes before figure10."""
    letters = path.stem.rstrip("0123456789")
    return letters, int(path.stem[len(letters) :] or 0)

"""The configuration of a hyper-parameter search: each method's box (the values to choose from), and equal budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import ceil, exp, inf, log, prod
from typing import Any, Self
from zlib import crc32

import numpy as np
from pydantic import Field, PrivateAttr, field_validator, model_validator

from ..core.errors import InputError
from ..methods import find, plain
from ..rounds.settings import flattened
from .config_errors import validated
from .schema import NamedObject, Section, table_of
from .settings_tables import SettingsGrid
from .spec import RunSpec, StudySpec, distinct_seeds, with_variants

CHOSEN = ("client", "method")  # sections of a run's configuration that a search chooses; others define the problem
LEARNING_RATES = (0.01, 0.0316, 0.1, 0.316)  # FedSAM's grid, 10^-2 to 10^-0.5; FedSMOO's is 0.01, 0.1, 0.5
REDRAWS = 100  # most redraws of a point that was drawn before; a narrow range has few numbers of three digits
DIGITS = 3  # significant digits of a number drawn from a range
# The runs of a search are judged by validation samples only.
WITHOUT_RESULTS: dict[str, Any] = {"data.without_test": True, "flatness": [], "probes": [], "targets": []}


class Range(Section):
    """The numbers from `low` to `high`, on a logarithmic scale if `log`."""

    low: float
    high: float
    log: bool = False

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if not -inf < self.low < self.high < inf or (self.log and self.low <= 0):
            raise InputError(f"low must be less than high, and more than 0 with log, got {self.low} and {self.high}")
        return self

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}{' (log)' if self.log else ''}"

    def at(self, u: float) -> float:
        """Return the number at the fraction `u` in [0, 1) of the range, rounded to three significant digits."""
        low, high = (log(self.low), log(self.high)) if self.log else (self.low, self.high)
        value = low + u * (high - low)
        rounded = float(f"{exp(value) if self.log else value:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)  # rounding may leave a range whose ends have more digits


@dataclass(frozen=True)
class OneOf:
    """A list of equally likely values."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))

    def at(self, u: float) -> Any:
        """Return the value at the fraction `u` in [0, 1) of the list."""
        return self.values[int(u * len(self.values))]


Choice = Range | OneOf
Point = dict[str, Any]  # values by the key of a run's configuration


def drawn(box: Mapping[str, Choice], number: int, seed: int, without: Point) -> list[Point]:
    """Draw `number` different points of a box, none equal to `without`; fewer if the box has fewer points.

    The points are a Latin hypercube: the range of each key is cut into `number` strata, with one point in each. The
    values of a key depend only on its name, `number` and `seed`, so that methods try the same step sizes.
    """
    size = prod(len(choice.values) if isinstance(choice, OneOf) else inf for choice in box.values())
    if size <= number + 1:
        lists = [choice.values if isinstance(choice, OneOf) else () for choice in box.values()]
        points = [dict(zip(box, values, strict=True)) for values in product(*lists)]
        return [point for point in points if not _same(point, without)][:number]
    columns = {key: _strata(key, number, seed) for key in box}
    chosen: list[Point] = []
    redraw = np.random.default_rng([seed, number])
    for i in range(number):
        shares = [
            {key: columns[key][i] for key in box},
            *({key: redraw.random() for key in box} for _ in range(REDRAWS)),
        ]
        candidates = ({key: choice.at(share[key]) for key, choice in box.items()} for share in shares)
        new = next((point for point in candidates if point not in chosen and not _same(point, without)), None)
        chosen += [] if new is None else [new]
    return chosen


def _same(point: Point, other: Point) -> bool:
    return all(key in other and other[key] == value for key, value in point.items())


def _strata(key: str, number: int, seed: int) -> Sequence[float]:
    """Draw a stratified sample of [0, 1): one point from each of `number` equal intervals, in random order."""
    rng = np.random.default_rng([seed, number, crc32(key.encode())])
    shares: list[float] = ((rng.permutation(number) + rng.random(number)) / number).tolist()
    return shares


@dataclass(frozen=True)
class Configuration:
    """One point of the box of a method."""

    method: NamedObject  # with its settings in the file
    number: int  # 0 for the settings of the file
    values: Point  # the settings that differ from the file


class TuneSection(Section):
    """The section [tune]: number of configurations, rounds, seeds, and the box."""

    configurations: int = Field(
        ge=1,
        description="total number, shared equally by the methods; the first of each has its settings in the file",
    )
    rounds: list[int] = Field(
        min_length=1,
        description="rising; after each the worse configurations are dropped, e.g. [100, 300]",
    )
    one_in: int = Field(default=3, ge=2, description="after each step, one in this many configurations is kept")
    seeds: list[int] = Field(
        default=[1000], min_length=1, description="seeds of the trials; the comparison of the winners needs others"
    )
    box: dict[str, Any] = Field(
        default={},
        description="values to choose from, by key as in a grid: a list, or {low = 0.01, high = 1, log = true}; "
        "a method without keys uses the values that papers tried",
    )
    _choices: dict[str, Choice] = PrivateAttr(default_factory=dict)

    @field_validator("rounds")
    @classmethod
    def _rise(cls, rounds: list[int]) -> list[int]:
        if rounds[0] < 1 or any(after <= before for before, after in pairwise(rounds)):
            raise InputError(f"must be rising integers of at least 1, got {rounds}")
        return rounds

    @field_validator("seeds")
    @classmethod
    def _are_distinct(cls, seeds: list[int]) -> list[int]:
        return distinct_seeds(seeds)

    @model_validator(mode="after")
    def _has_choices(self) -> Self:
        self._choices.update(_choices(self.box))
        return self


def _tried_values(method: NamedObject, prefix: str = "method") -> dict[str, tuple[Any, ...]]:
    """Return the values that papers tried for the fields of a method, and of the methods inside it, by key."""
    values = {f"{prefix}.{name}": grid for name, grid in find(method.name).sources.grids.items()}
    for name, value in method.fields.items():
        values |= _tried_values(value, f"{prefix}.{name}") if isinstance(value, NamedObject) else {}
    return values


def _choices(table: Mapping[str, Any], prefix: str = "") -> dict[str, Choice]:
    """Return the choice of each dotted key. Raises InputError, naming the key, for a value that is no list or range."""
    choices: dict[str, Choice] = {}
    for name, value in table.items():
        if isinstance(value, dict) and value and not value.keys() & Range.model_fields.keys():
            choices |= _choices(value, f"{prefix}{name}.")
        else:
            choices[prefix + name] = _choice(f"box.{prefix}{name}", value)
    return choices


def _choice(key: str, value: Any) -> Choice:
    if isinstance(value, dict) and value:
        try:
            return validated(Range, value)
        except InputError as error:
            raise InputError(f"{key}: {error}; a range has low, high and, if logarithmic, log = true") from error
    if not isinstance(value, list) or not value:
        raise InputError(f"{key} must be a list of values, or {{low = ..., high = ...}}, got {value!r}")
    if any(one in value[:i] for i, one in enumerate(value)):
        raise InputError(f"{key} has a value twice: {value!r}")
    return OneOf(tuple(value))


class TuningSpec(StudySpec):
    """A hyper-parameter search, and the study that then compares the winners with other seeds and `rounds` rounds."""

    tune: TuneSection

    @model_validator(mode="before")
    @classmethod
    def _has_a_search(cls, table: Any) -> Any:
        if isinstance(table, dict) and "tune" not in table:
            raise InputError("tune: a search needs a section [tune], with configurations, rounds and box")
        return table

    @model_validator(mode="after")
    def _can_be_searched(self) -> Self:
        if self.grid:
            raise InputError("grid: a search chooses from tune.box; leave out one of the two")
        if not self.data.validation:
            raise InputError("data.validation: a search needs validation samples; set it, e.g. to 0.1")
        again = sorted(set(self.tune.seeds) & set(self.seeds))
        if again:
            raise InputError(
                f"tune.seeds: {again[0]} is also in seeds; the comparison needs seeds that settings were not chosen by"
            )
        self._check_methods()
        self._check_keys()
        for method in self.methods:
            self._check_trials(method)
        return self

    def _check_methods(self) -> None:
        """Raise InputError unless the methods share the configurations equally, and each is listed once."""
        labels = [method.label for method in self.methods]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice:
            raise InputError(f"methods: {twice} is listed twice; a search chooses the settings of each method once")
        share, rest = divmod(self.tune.configurations, len(self.methods))
        if not share or rest:
            how = "not a multiple of" if share else "less than"
            raise InputError(
                f"tune.configurations = {self.tune.configurations} is {how} the number of methods, "
                f"{len(self.methods)}, which share it equally"
            )

    def _check_keys(self) -> None:
        """Raise InputError for a key of the box that is a setting of neither local training nor a method."""
        names = {plain(method.label): method.label for method in self.methods}
        for key in self.tune._choices:
            owner, _, field = key.partition(".")
            if owner in CHOSEN or (owner and not owner[0].islower()):
                continue
            if owner in names:
                raise InputError(f"tune.box.{key}: write {names[owner]}.{field}, the name of the method")
            raise InputError(
                f"tune.box.{key}: a search chooses settings of client and of methods (client.lr, method.rho, "
                "FedSAM.rho); all other settings define the problem"
            )

    def _check_trials(self, method: NamedObject) -> None:
        """Raise InputError if a configuration of the method is invalid, or if its box has too few points."""
        tune, configurations = self.tune, self.configurations_of(method)
        planned = self._client_for(method).depends_on_rounds or (method.is_loaded and method.object.depends_on_rounds)
        planned = planned or (self.perturbation is not None and self.perturbation.depends_on_rounds)
        if len(tune.rounds) > 1 and planned:
            raise InputError(f"tune.rounds = {tune.rounds}: {method.label} depends on the planned number of "
                             "rounds, so its runs cannot be extended; give one number")  # fmt: skip
        for configuration in configurations:
            self.trial(configuration, tune.seeds[0], tune.rounds[0])
        share = tune.configurations // len(self.methods)
        if len(configurations) < share:
            raise InputError(
                f"tune.configurations = {tune.configurations} is {share} for each method, and tune.box has only "
                f"{len(configurations)} different ones for {method.label}; give it more values, or a range"
            )

    def box_of(self, method: NamedObject) -> dict[str, Choice]:
        """Return the values that the search can choose for one method, by the key of a run's configuration.

        If the box has no key for the method, or none for `client`, the values that papers tried are used. Raises
        InputError, naming the key, for a field that no method has.
        """
        choices = self.tune._choices
        box = SettingsGrid(choices, self.methods, where="tune.box").choices_of(method)
        if not any(key.startswith("method.") for key in box):
            box |= {key: OneOf(values) for key, values in _tried_values(method).items()}
        if not any(key.startswith("client.") for key in choices):
            box["client.lr"] = OneOf(LEARNING_RATES)
        return box

    def configurations_of(self, method: NamedObject) -> list[Configuration]:
        """Return the configurations of one method: the settings of the file, and points of its box."""
        number = self.tune.configurations // len(self.methods) - 1
        given = flattened({"client": vars(self._client_for(method)), "method": table_of(method)})
        points = drawn(self.box_of(method), number, self.tune.seeds[0], given) if number else []
        return [Configuration(method, i, point) for i, point in enumerate([{}, *points])]

    def sizes(self, configurations: int) -> list[int]:
        """Return the number of a method's configurations in each step; in the first step there are `configurations`."""
        sizes = [configurations]
        for _ in self.tune.rounds[1:]:
            sizes.append(ceil(sizes[-1] / self.tune.one_in))
        return sizes

    def trial(self, configuration: Configuration, seed: int, rounds: int) -> RunSpec:
        """Return the run of one configuration. Raises InputError, naming the key, for an invalid value."""
        try:
            return self._run(configuration.method, configuration.values | WITHOUT_RESULTS | {"rounds": rounds}, seed)
        except InputError as error:
            message = f"tune.box: {str(error).removeprefix('grid: ').removeprefix('grid.')}"
            hint = "; give integers as a list" if "a whole number" in message else ""
            raise InputError(message + hint) from error

    def trials(self, configurations: Sequence[Configuration], rounds: int) -> list[RunSpec]:
        """Return the runs of `configurations` with every seed; a run's title shows the settings that distinguish it."""
        return with_variants([self.trial(one, seed, rounds) for one in configurations for seed in self.tune.seeds])

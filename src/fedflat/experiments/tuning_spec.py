"""The configuration of a search for hyper-parameters: the box of each method, and one budget for all."""

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
from .schema import Named, Section, table_of
from .settings_tables import SettingsGrid
from .spec import RunSpec, StudySpec, distinct_seeds, with_variants

CHOSEN = ("client", "method")  # sections of a run's configuration that are chosen; the others make the problem
LEARNING_RATES = (0.01, 0.0316, 0.1, 0.316)  # FedSAM's grid, 10^-2 to 10^-0.5; FedSMOO's is 0.01, 0.1, 0.5
REDRAWS = 100  # of a point that is there already; a narrow range has few numbers of three digits
DIGITS = 3  # significant, of a number drawn from a range
# Runs of a search look at validation samples, and at nothing else.
WITHOUT_RESULTS: dict[str, Any] = {"data.without_test": True, "flatness": [], "probes": [], "targets": []}


class Range(Section):
    """The numbers from `low` to `high`."""

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
        """The number at the share `u` in [0, 1) of the range, to three digits."""
        low, high = (log(self.low), log(self.high)) if self.log else (self.low, self.high)
        value = low + u * (high - low)
        rounded = float(f"{exp(value) if self.log else value:.{DIGITS}g}")
        return min(max(rounded, self.low), self.high)  # rounding leaves a range whose ends have more digits


@dataclass(frozen=True)
class OneOf:
    """Some values, each as likely as the others."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.values))

    def at(self, u: float) -> Any:
        """The value at the share `u` in [0, 1)."""
        return self.values[int(u * len(self.values))]


Choice = Range | OneOf
Point = dict[str, Any]  # values by key


def drawn(box: Mapping[str, Choice], number: int, seed: int, without: Point) -> list[Point]:
    """`number` different points of a box, none of which is `without`; all of them if there are no more.

    A Latin hypercube: of `number` strata of each key's choice, every one has a point. The values of a key depend on
    its name, `number` and `seed` alone, so that methods try the same step sizes.
    """
    size = prod(len(choice.values) if isinstance(choice, OneOf) else inf for choice in box.values())
    if size <= number + 1:
        points = [dict(zip(box, values, strict=True)) for values in product(*_all_values(box))]
        return [point for point in points if not _same(point, without)][:number]
    columns = {key: _strata(key, number, seed) for key in box}
    found: list[Point] = []
    redraw = np.random.default_rng([seed, number])
    for i in range(number):
        shares = [
            {key: columns[key][i] for key in box},
            *({key: redraw.random() for key in box} for _ in range(REDRAWS)),
        ]
        candidates = ({key: choice.at(one[key]) for key, choice in box.items()} for one in shares)
        new = next((point for point in candidates if point not in found and not _same(point, without)), None)
        found += [] if new is None else [new]
    return found


def _all_values(box: Mapping[str, Choice]) -> list[tuple[Any, ...]]:
    return [choice.values if isinstance(choice, OneOf) else () for choice in box.values()]


def _same(point: Point, other: Point) -> bool:
    return all(key in other and other[key] == value for key, value in point.items())


def _strata(key: str, number: int, seed: int) -> Sequence[float]:
    """A share from each of `number` strata of [0, 1), in random order."""
    rng = np.random.default_rng([seed, number, crc32(key.encode())])
    shares: list[float] = ((rng.permutation(number) + rng.random(number)) / number).tolist()
    return shares


@dataclass(frozen=True)
class Configuration:
    """One setting of a method that a search tries."""

    method: Named  # as the file has it
    number: int  # 0 are the settings of the file itself
    values: Point  # what differs from the file, by the key of a run's configuration


class TuneSection(Section):
    """The search: what is tried, how long, and by which seeds."""

    configurations: int = Field(
        ge=1, description="tried in all, shared equally by the methods; of each the first are its settings in the file"
    )
    rounds: list[int] = Field(
        min_length=1, description="rounds after which the worse ones end, rising, e.g. [100, 300]; the last picks one"
    )
    one_in: int = Field(default=3, ge=2, description="of so many configurations one goes on after each step")
    seeds: list[int] = Field(
        default=[1000], min_length=1, description="of the runs; the comparison of the winners has others"
    )
    box: dict[str, Any] = Field(
        default={},
        description="what is chosen from, by key as in a grid: lists of values, or {low = 0.01, high = 1, log = true}; "
        "a method without keys has the values that papers tried",
    )
    _choices: dict[str, Choice] = PrivateAttr(default_factory=dict)

    @field_validator("rounds")
    @classmethod
    def _rise(cls, rounds: list[int]) -> list[int]:
        if rounds[0] < 1 or any(after <= before for before, after in pairwise(rounds)):
            raise InputError(f"must be whole numbers that rise, from at least 1, got {rounds}")
        return rounds

    @field_validator("seeds")
    @classmethod
    def _are_distinct(cls, seeds: list[int]) -> list[int]:
        return distinct_seeds(seeds)

    @model_validator(mode="after")
    def _has_choices(self) -> Self:
        self._choices.update(_choices(self.box))
        return self


def _tried_values(method: Named, prefix: str = "method") -> dict[str, tuple[Any, ...]]:
    """What papers tried for the fields of a method, and of one inside it, by key."""
    found = {f"{prefix}.{name}": values for name, values in find(method.name).sources.grids.items()}
    for name, value in method.fields.items():
        found |= _tried_values(value, f"{prefix}.{name}") if isinstance(value, Named) else {}
    return found


def _choices(table: Mapping[str, Any], prefix: str = "") -> dict[str, Choice]:
    """What each dotted key is chosen from. Raises InputError, naming the key, for what is neither list nor range."""
    found: dict[str, Choice] = {}
    for name, value in table.items():
        if isinstance(value, dict) and value and not value.keys() & Range.model_fields.keys():
            found |= _choices(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = _choice(f"box.{prefix}{name}", value)
    return found


def _choice(key: str, value: Any) -> Choice:
    if isinstance(value, dict) and value:
        try:
            return validated(Range, value)
        except InputError as error:
            raise InputError(f"{key}: {error}; a range has low, high and, if it is to be logarithmic, log") from error
    if not isinstance(value, list) or not value:
        raise InputError(f"{key} must be a list of values, or {{low = ..., high = ...}}, got {value!r}")
    if any(one in value[:i] for i, one in enumerate(value)):
        raise InputError(f"{key} has a value twice: {value!r}")
    return OneOf(tuple(value))


class TuningSpec(StudySpec):
    """A study whose methods first get their hyper-parameters by a search; its seeds and rounds are the comparison's."""

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
            raise InputError("grid: a search chooses by tune.box; leave one of both out")
        if not self.data.validation:
            raise InputError("data.validation: a search needs validation samples; set it, e.g. to 0.1")
        again = sorted(set(self.tune.seeds) & set(self.seeds))
        if again:
            raise InputError(
                f"tune.seeds: {again[0]} is in seeds too; a seed that settings are chosen by compares none"
            )
        self._check_methods()
        self._check_keys()
        for method in self.methods:
            self._check_trials(method)
        return self

    def _check_methods(self) -> None:
        """Raise InputError unless the methods share the configurations equally, and each is there once."""
        labels = [method.label for method in self.methods]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice:
            raise InputError(f"methods: {twice} is there twice; a search finds the best settings of each method once")
        share, rest = divmod(self.tune.configurations, len(self.methods))
        if not share or rest:
            how = "no multiple of" if share else "less than"
            raise InputError(
                f"tune.configurations = {self.tune.configurations} is {how} the number of methods, "
                f"{len(self.methods)}, which share it equally"
            )

    def _check_keys(self) -> None:
        """Raise InputError for a key that is chosen neither of local training nor of a method."""
        names = {plain(method.label): method.label for method in self.methods}
        for key in self.tune._choices:
            owner, _, field = key.partition(".")
            if owner in CHOSEN or (owner and not owner[0].islower()):
                continue
            if owner in names:
                raise InputError(f"tune.box.{key}: write {names[owner]}.{field}, as the method is called")
            raise InputError(
                f"tune.box.{key}: a search chooses settings of client and of methods (client.lr, method.rho, "
                "FedSAM.rho); everything else makes the problem that they are chosen for"
            )

    def _check_trials(self, method: Named) -> None:
        """Raise InputError if a configuration of the method cannot be, or if it has fewer than the others."""
        tune, configurations = self.tune, self.configurations_of(method)
        if len(tune.rounds) > 1 and method.is_loaded and method.object.depends_on_rounds:
            raise InputError(f"tune.rounds = {tune.rounds}: {method.label} trains by how many rounds are planned, "
                             "so none can be added to its runs; give one number")  # fmt: skip
        for configuration in configurations:
            self.trial(configuration, tune.seeds[0], tune.rounds[0])
        share = tune.configurations // len(self.methods)
        if len(configurations) < share:
            raise InputError(
                f"tune.configurations = {tune.configurations} is {share} of each method, and tune.box has only "
                f"{len(configurations)} different ones of {method.label}; give it more values, or a range"
            )

    def box_of(self, method: Named) -> dict[str, Choice]:
        """What the search chooses from for one method, by the key of a run's configuration.

        Raises InputError, naming the key, for one that no method has, and for a method with nothing to choose.
        """
        choices = self.tune._choices
        box = SettingsGrid(choices, self.methods, where="tune.box").choices_of(method)
        if not any(key.startswith("method.") for key in box):
            box |= {key: OneOf(values) for key, values in _tried_values(method).items()}
        if not any(key.startswith("client.") for key in choices):
            box["client.lr"] = OneOf(LEARNING_RATES)
        return box

    def configurations_of(self, method: Named) -> list[Configuration]:
        """The configurations of one method: the file's, and others from its box."""
        number = self.tune.configurations // len(self.methods) - 1
        mine = {"client." + name: value for name, value in vars(self._client_for(method)).items()}
        mine |= flattened(table_of(method), "method.")
        points = drawn(self.box_of(method), number, self.tune.seeds[0], mine) if number else []
        return [Configuration(method, i, point) for i, point in enumerate([{}, *points])]

    def sizes(self, configurations: int) -> list[int]:
        """How many of so many configurations of a method are trained in each step."""
        found = [configurations]
        for _ in self.tune.rounds[1:]:
            found.append(ceil(found[-1] / self.tune.one_in))
        return found

    def trial(self, configuration: Configuration, seed: int, rounds: int) -> RunSpec:
        """The run of one configuration. Raises InputError, naming the key, for a value that cannot be."""
        try:
            return self._run(configuration.method, configuration.values | WITHOUT_RESULTS | {"rounds": rounds}, seed)
        except InputError as error:
            said = f"tune.box: {str(error).removeprefix('grid: ').removeprefix('grid.')}"
            whole = "; give whole numbers as a list" if "a whole number" in said else ""
            raise InputError(said + whole) from error

    def trials(self, configurations: Sequence[Configuration], rounds: int) -> list[RunSpec]:
        """The runs of some configurations with every seed, each of which knows what distinguishes it."""
        return with_variants([self.trial(one, seed, rounds) for one in configurations for seed in self.tune.seeds])

"""The plan of this study as numbers: the grid, how configurations are chosen, and the runs of every part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

GAPS = ("few", "many")
DATA = "fashion-mnist"
IMAGES = {"few": 2_000, "many": 20_000}  # training images of all clients
CLIENTS, COHORT = 50, 10
MODEL: Mapping[str, Any] = {"name": "mlp", "options": {"hidden": [200, 200]}}
CHANCE = 0.1  # the accuracy of a run that diverged
Row = Mapping[str, Any]  # a run that has finished or diverged, as collect.py describes it


class Configuration(NamedTuple):
    """A method with its radius (0 for a base) and its step size."""

    method: str
    rho: float
    lr: float


Scores = dict[Configuration, float]


class Part(NamedTuple):
    """Some configurations with some seeds at one gap."""

    name: str
    gap: str
    seeds: tuple[int, ...]
    configurations: tuple[Configuration, ...] | None  # None before the choices that they depend on
    rounds: int
    number: int | None = None  # of configurations, if it is known before they are
    is_measured: bool = False  # whether measures of flatness are taken of the final models

    def ended(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows of the runs of this part."""
        planned = {(one, seed) for one in self.configurations or () for seed in self.seeds}
        mine = (row for row in rows if (row["part"], row["gap"]) == (self.name, self.gap))
        return [row for row in mine if (configuration_of(row), row["seed"]) in planned]

    @property
    def size(self) -> int | None:
        """The number of runs; None as long as it is not known."""
        number = self.number if self.configurations is None else len(self.configurations)
        return None if number is None else number * len(self.seeds)

    def has_ended(self, rows: Iterable[Row]) -> bool:
        """Tell whether every run has finished or diverged."""
        return self.configurations is not None and len(self.ended(rows)) == self.size


@dataclass(frozen=True)
class Plan:
    """The numbers of the plan. Those of tests are smaller."""

    base_of: Mapping[str, str] = field(
        default_factory=lambda: {"FedSAM": "FedAvg", "FedLESAM": "FedAvg", "MoFedSAM": "FedCM", "FedSMOO": "FedDyn"}
    )
    step_sizes: tuple[float, ...] = (0.06, 0.12, 0.24, 0.48)
    radii: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    choosing_seeds: tuple[int, ...] = (1000, 1001, 1002)
    seeds: tuple[int, ...] = tuple(range(28))
    rounds: int = 150

    @property
    def bases(self) -> tuple[str, ...]:
        """The bases, each once."""
        return tuple(dict.fromkeys(self.base_of.values()))

    @property
    def methods(self) -> tuple[str, ...]:
        """The bases, and then the flat methods."""
        return *self.bases, *self.base_of

    @property
    def grid(self) -> tuple[Configuration, ...]:
        """The configurations that are chosen from, of all methods."""
        return tuple(
            Configuration(method, rho, lr)
            for method in self.methods
            for rho in (self.radii if method in self.base_of else (0.0,))
            for lr in self.step_sizes
        )

    def beyond(self, chosen: Configuration) -> list[Configuration]:
        """Return the configuration with one further value for each value of `chosen` at an end of the grid."""
        further = []
        for name, values in (("lr", self.step_sizes), ("rho", self.radii if chosen.method in self.base_of else ())):
            for end, inner in ((values[:1], values[1:2]), (values[-1:], values[-2:-1])):
                if end and getattr(chosen, name) == end[0]:
                    further.append(chosen._replace(**{name: end[0] * end[0] / inner[0]}))
        return further

    def parts(self, rows: Sequence[Row]) -> list[Part]:
        """Return every part in the order of the plan, given the runs that have ended: all choices come first."""
        choice = self.choice(rows)
        bases = tuple(one for one in self.grid if one.method in self.bases)
        longer = Part("choose-twice", "few", self.choosing_seeds, bases, 2 * self.rounds)
        comparison = [part for gap in GAPS for part in self._comparison(rows, gap)]
        scores = scores_of(rows, [longer])
        chosen = tuple(best(scores, base) for base in self.bases) if scores else None
        twice = Part("twice", "few", self.seeds, chosen, 2 * self.rounds, len(self.bases))
        return [*choice, longer, *comparison, twice]

    def choice(self, rows: Sequence[Row]) -> list[Part]:
        """Return the parts that choose for the comparison: the grid, and what lies beyond ends that are the best."""
        first = [Part("choose", gap, self.choosing_seeds, self.grid, self.rounds) for gap in GAPS]
        scores = [scores_of(rows, [part]) for part in first]
        further: tuple[Configuration, ...] | None = None
        if all(scores):
            winners = [best(some, method) for some in scores for method in self.methods]
            further = tuple(dict.fromkeys(more for one in winners for more in self.beyond(one)))
        return [*first, *(Part("choose-further", gap, self.choosing_seeds, further, self.rounds) for gap in GAPS)]

    def scores(self, rows: Sequence[Row], gap: str) -> Scores | None:
        """Return the accuracy of every configuration at one gap, from which is chosen; None before all have ended."""
        parts = self.choice(rows)
        known = all(part.has_ended(rows) for part in parts)
        return scores_of(rows, [part for part in parts if part.gap == gap]) if known else None

    def _comparison(self, rows: Sequence[Row], gap: str) -> list[Part]:
        """Return the best configurations at one gap, and those flat ones that are the best with the base's step size.

        A flat method whose best configuration has that step size is not trained again.
        """
        chosen, others = None, None
        if scores := self.scores(rows, gap):
            winners = {method: best(scores, method) for method in self.methods}
            same = [best(scores, flat, lr=winners[base].lr) for flat, base in self.base_of.items()]
            chosen, others = tuple(winners.values()), tuple(one for one in same if one not in winners.values())
        return [
            Part("compare", gap, self.seeds, chosen, self.rounds, len(self.methods), is_measured=True),
            Part("same-step-size", gap, self.seeds, others, self.rounds),
        ]


PLAN = Plan()


def configuration_of(row: Row) -> Configuration:
    """Return the configuration of a run."""
    return Configuration(row["method"], row["rho"], row["lr"])


def scores_of(rows: Sequence[Row], parts: Sequence[Part]) -> Scores | None:
    """Return the mean accuracy over seeds of each configuration of `parts`; None before all their runs have ended."""
    if not all(part.has_ended(rows) for part in parts):
        return None
    found: dict[Configuration, list[float]] = {one: [] for part in parts for one in part.configurations or ()}
    for row in (row for part in parts for row in part.ended(rows)):
        found[configuration_of(row)].append(CHANCE if row["diverged"] else row["accuracy"])
    return {one: fmean(values) for one, values in found.items()}


def ranked(scores: Scores, method: str, **fixed: float) -> list[Configuration]:
    """Return a method's configurations with `fixed` values, best first; on a tie the smaller radius, then step size."""
    mine = [one for one in scores if one.method == method and fixed.items() <= one._asdict().items()]
    return sorted(mine, key=lambda one: (-scores[one], one.rho, one.lr))


def best(scores: Scores, method: str, **fixed: float) -> Configuration:
    """Return the first of `ranked`."""
    return ranked(scores, method, **fixed)[0]

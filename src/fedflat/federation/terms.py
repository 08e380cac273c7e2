"""The settings of a federation that its operator chooses, declared once for run-config, command line and server."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from ..core.errors import InputError

if TYPE_CHECKING:
    from ..rounds.guard import Guard

LIMITS = {  # by their names in pydantic
    "gt": ("more than", operator.gt), "ge": ("at least", operator.ge),
    "lt": ("less than", operator.lt), "le": ("at most", operator.le),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A setting: the type of its value, its default, its meaning with the unit, and the limits of its value."""

    kind: Any
    default: Any
    meaning: str
    limits: Mapping[str, float] = field(default_factory=dict)  # by the keys of `LIMITS`

    def check(self, name: str, value: Any) -> None:
        """Raise InputError, naming the key, for a value outside the limits. None is allowed if it is the default."""
        if value is None and self.default is None:
            return
        if not all(LIMITS[limit][1](value, number) for limit, number in self.limits.items()):
            allowed = " and ".join(f"{LIMITS[limit][0]} {number:g}" for limit, number in self.limits.items())
            raise InputError(f"{key_of(name)} must be {allowed}, got {value}")


SETTINGS = {
    "wait": Setting(float, 600.0, "seconds until all clients must have registered", {"gt": 0}),
    "deadline": Setting(
        float, 600.0, "seconds for a round; with `secure-sum` for each of its four steps; later replies do not count",
        {"gt": 0},
    ),
    "quorum": Setting(float, 0.5, "share of a round's clients that must reply", {"gt": 0, "le": 1}),
    "goal": Setting(
        float, 1.0, "share of a round's clients whose accepted replies close the round before the deadline",
        {"gt": 0, "le": 1},
    ),
    "members": Setting(
        str, "", "who may take part, with how many samples: clinic-a=1200 clinic-b=800; "
        "if empty, the clients that register first",
    ),
    "join_later": Setting(
        bool, False, "whether a client that registers after the beginning joins before the next round; those that "
        "`members` or `registry` lists always do",
    ),
    # The default is more than any client of the package's data sets has. With `weights = "samples"`, this setting also
    # limits the weight of a client.
    "max_samples": Setting(
        int, 1_000_000, "samples that a client may claim where `members` does not list it", {"ge": 1, "lt": 2**53}
    ),
    "norm_multiple": Setting(
        float, 100.0, "largest allowed norm of a client's vector, as a multiple of the largest norm seen before",
        {"ge": 1},
    ),
    "secure_sum": Setting(
        float | None, None, "share of a round's clients, such as 0.6, that must help the server to unmask the sum of "
        "their records; it then sees this sum only; without `secure-sum` it sees each record", {"gt": 0.5, "le": 1},
    ),
    "shape": Setting(str | None, None, "shape of clients' own samples, such as 3x32x32"),
    "classes": Setting(int | None, None, "number of classes of clients' own samples", {"ge": 1}),
    "numbers": Setting(
        str, "floats", "what clients' own samples are: floats, pixels (uint8), or other whole numbers as tokens"
    ),
    "test": Setting(
        str, "", "the server's folder or file with own test samples, in the form of the clients'; none if empty"
    ),
}  # fmt: skip


def key_of(name: str) -> str:
    """Return the key of a setting in Flower's form: with dashes where Python's name has underscores."""
    return name.replace("_", "-")


@dataclass(frozen=True)
class RoundTerms:
    """The settings that decide when a round ends and which replies the server accepts."""

    deadline: float = SETTINGS["deadline"].default
    quorum: float = SETTINGS["quorum"].default
    norm_multiple: float = SETTINGS["norm_multiple"].default  # infinity: norms are not bounded
    secure_sum: float | None = SETTINGS["secure_sum"].default  # None: without secure sum
    goal: float = SETTINGS["goal"].default

    def __post_init__(self) -> None:
        """Raise InputError, naming the key, for a value beyond its limits."""
        for name, value in vars(self).items():
            SETTINGS[name].check(name, value)
        if self.goal < self.quorum:
            raise InputError(f"goal is {self.goal:g}, and quorum {self.quorum:g}: a round that is closed has a quorum")

    def needed(self, asked: int) -> int:
        """Return how many replies must be accepted if `asked` clients are asked: the quorum, rounded up."""
        return _rounded_up(self.quorum, asked)

    def enough(self, asked: int) -> int:
        """Return how many accepted replies close a round of `asked` clients."""
        return _rounded_up(self.goal, asked)

    def check(self, guard: Guard | None, is_compressed: bool) -> None:
        """Raise InputError, naming the key, for what does not go with a secure sum.

        That is a bound on norms that the server cannot check, and compression of what clients send.
        """
        if self.secure_sum is None:
            return
        if is_compressed:
            raise InputError("compress does not go with secure-sum: what is masked has no zeros to leave out and needs "
                             "all of its bits; leave one of the two out")  # fmt: skip
        norms = guard is not None and guard.bounds_norms
        if guard is not None and norms and (guard.multiple is not None or guard.action == "refuse"):
            raise InputError("guard: the server sees no client's norm under secure-sum; set bound alone, to which "
                             "clients shorten what they send, with action = 'clip'")  # fmt: skip
        if not norms and isfinite(self.norm_multiple):
            raise InputError(
                "norm-multiple: under secure-sum the server sees no client's norm; set norm-multiple = inf"
            )


def _rounded_up(share: float, number: int) -> int:
    return ceil(Fraction(str(share)) * number)  # exact; in floating point, 0.55 * 20 is more than 11

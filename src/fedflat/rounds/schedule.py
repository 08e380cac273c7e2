"""The step size of local training over the rounds of a run."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Literal, Protocol

from ..core.errors import InputError

Schedule = Literal["constant", "exponential", "cosine", "step", "linear"]


class ScheduleSettings(Protocol):
    """The settings of local training that a schedule uses; see `local_training.Client`."""

    @property
    def lr(self) -> float:
        """The step size."""

    @property
    def lr_decay(self) -> float:
        """The factor on the step size."""

    @property
    def schedule(self) -> Schedule:
        """The name of the schedule."""

    @property
    def step_rounds(self) -> int | None:
        """The rounds between two factors."""

    @property
    def lr_end(self) -> float:
        """The step size after the planned rounds."""

    @property
    def warmup(self) -> int:
        """The rounds of the warm-up."""


# The step size after the warm-up: (settings, round, planned rounds), both counted from the end of the warm-up.
FORMULAS: dict[str, Callable[[ScheduleSettings, int, int], float]] = {
    "constant": lambda client, t, rounds: client.lr,
    "exponential": lambda client, t, rounds: client.lr * client.lr_decay**t,
    "step": lambda client, t, rounds: client.lr * client.lr_decay ** (t // (client.step_rounds or 1)),
    "linear": lambda client, t, rounds: client.lr + (client.lr_end - client.lr) * t / rounds,
    "cosine": lambda client, t, rounds: client.lr_end + (client.lr - client.lr_end) * (1 + cos(pi * t / rounds)) / 2,
}
PLANNED = ("cosine", "linear")  # schedules that depend on the number of planned rounds
# The fields that schedules use, and the schedules that use each.
USED = {"lr_decay": ("exponential", "step"), "step_rounds": ("step",), "lr_end": PLANNED}


def step_size(client: ScheduleSettings, t: int, rounds: int) -> float:
    """Return the step size of round `t` of a run of `rounds` planned rounds, by the schedule of `client`.

    In the w rounds of a warm-up it is lr (t + 1) / (w + 1); then the schedule begins with its round 0. A schedule that
    depends on `rounds` stays at its last round after the planned ones, such as in a dry round.
    """
    if t < client.warmup:
        return client.lr * (t + 1) / (client.warmup + 1)
    if client.schedule in PLANNED:
        t = min(t, rounds - 1)
    return FORMULAS[client.schedule](client, t - client.warmup, rounds - client.warmup)


def check_schedule(client: ScheduleSettings) -> None:
    """Raise InputError, naming the field, for a field that the schedule does not use, or one that it lacks."""
    defaults = {"lr_decay": 1.0, "step_rounds": None, "lr_end": 0.0}
    for name, schedules in USED.items():
        if client.schedule not in schedules and getattr(client, name) != defaults[name]:
            raise InputError(
                f"client.{name} = {getattr(client, name)} is not used by client.schedule = {client.schedule!r}, but by "
                f"{' and '.join(map(repr, schedules))}; leave it out"
            )
    if client.schedule == "step" and client.step_rounds is None:
        raise InputError("client.schedule = 'step' needs client.step_rounds, the rounds between two steps")
    if client.schedule in PLANNED and client.lr_end > client.lr:
        raise InputError(f"client.lr_end = {client.lr_end} is more than client.lr = {client.lr}")


def check_warmup(client: ScheduleSettings, rounds: int) -> None:
    """Raise InputError if the warm-up takes all `rounds` planned rounds."""
    if client.warmup and client.warmup >= rounds:
        raise InputError(f"client.warmup = {client.warmup} rounds are not fewer than rounds = {rounds}")

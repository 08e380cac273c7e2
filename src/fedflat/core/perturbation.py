"""The options of a run's perturbation, which go with any method that perturbs the model along a direction."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import InputError
from .hyper import by_name, check, hyper

RadiusSchedule = Literal["constant", "linear", "cosine", "warmup", "lr"]
PLANNED = ("linear", "cosine")  # schedules that depend on the number of planned rounds
MOST = 10**9  # rounds

# Options by the name of their field: for a perturbation along a gradient of the step, and along any other direction.
ALONG_OTHER = frozenset({"layers", "radius", "schedule"})
ALONG_GRADIENT = ALONG_OTHER | {"adaptive", "sigma"}

# The fields that belong to an option, by the option: the field, and the values of the option that use it.
USED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "eta": ("adaptive", (True,)),
    "rho_end": ("schedule", PLANNED),
    "rho_start": ("schedule", ("warmup",)),
    "rho_rounds": ("schedule", ("warmup",)),
}


@by_name
@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """Options of a method's perturbation e, whose radius is the method's rho; at their defaults they change nothing.

    With radius = "layer" the part of e in each of L parameter tensors has the length rho, so ||e|| = rho sqrt(L). An
    adaptive perturbation is that of FedASAM, with T = |w| + eta on weights and 1 on biases; what has the length rho is
    then e / T. With sigma, the perturbation at local step k of a round is along g_k - sigma m_{k-1}, where g_k is the
    gradient and m_k = ema m_{k-1} + (1 - ema) g_k, m_0 = g_0; at step 0 it is along g_0. A radius of 0 stays 0 in every
    schedule.
    """

    radius: Literal["global", "layer"] = hyper(
        "global", "what has the length rho: the perturbation, or its part in each parameter tensor", later=True
    )
    layers: tuple[str, ...] = hyper(
        (), "the parameters that are perturbed: names, with * and ?, e.g. ['head.*']; none are all", later=True
    )
    schedule: RadiusSchedule = hyper("constant", "the radius over the rounds; 'lr' is in proportion to the step size",
                                     later=True)  # fmt: skip
    rho_end: float = hyper(0.0, "schedules 'linear' and 'cosine': the radius after the planned rounds", low=0,
                           later=True)  # fmt: skip
    rho_start: float = hyper(0.0, "schedule 'warmup': the radius of round 0", low=0, later=True)
    rho_rounds: int | None = hyper(
        None, "schedule 'warmup': the rounds in which the radius rises linearly to rho", low=1, high=MOST, later=True
    )
    adaptive: bool = hyper(False, "stretch the ball of perturbations by each weight's size, as ASAM does", later=True)
    eta: float = hyper(0.2, "adaptive: added to |w| on weights, in parameter units", low=0, later=True)
    sigma: float = hyper(
        0.0, "weight of the mean of earlier gradients, which is subtracted (Friendly-SAM); 0 is SAM", low=0, later=True
    )
    ema: float = hyper(0.6, "sigma: weight of the old mean in the new one", low=0, high=1, later=True)

    def __post_init__(self) -> None:
        """Raise InputError, naming the field, for a value that is out of range, not used, or missing."""
        layers: Any = self.layers
        if isinstance(layers, list | str):
            object.__setattr__(self, "layers", (layers,) if isinstance(layers, str) else tuple(map(str, layers)))
        check(self, "perturbation")
        for name, (option, values) in USED.items():
            if getattr(self, option) not in values:
                self._check_unused(name, option)
        if not self.sigma:
            self._check_unused("ema", "sigma")
        if self.schedule == "warmup" and self.rho_rounds is None:
            raise InputError("perturbation.schedule = 'warmup' needs perturbation.rho_rounds, the rounds of the rise")

    def _check_unused(self, name: str, option: str) -> None:
        """Raise InputError if a field that the value of `option` does not use differs from its default."""
        if getattr(self, name) != getattr(type(self), name):
            raise InputError(f"perturbation.{name} = {getattr(self, name)} is not used by perturbation.{option} = "
                             f"{getattr(self, option)!r}; leave it out")  # fmt: skip

    @property
    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, by the name of their field."""
        return {name: getattr(self, name) for name in sorted(ALONG_GRADIENT)
                if getattr(self, name) != getattr(type(self), name)}  # fmt: skip

    @property
    def depends_on_rounds(self) -> bool:
        """Whether the radius depends on the number of planned rounds."""
        return self.schedule in PLANNED

    def scheduled(self, rho: float | Tensor, t: int | Tensor, rounds: int, lr_share: float | Tensor) -> float | Tensor:
        """Return rho in round `t` of a run of `rounds` planned rounds; `rho` is the method's.

        lr_share: the step size of this round, divided by that of round 0. A schedule that depends on `rounds` stays at
        its last round after the planned ones. Executors may give `t` and `lr_share` as tensors.
        """
        if self.schedule == "constant":
            return rho
        if self.schedule == "lr":
            return rho * lr_share
        other = self.rho_start if self.schedule == "warmup" else self.rho_end
        found = rho - (rho - other) * self._share_of_other(t, rounds)
        return torch.where(rho > 0, found, 0.0) if isinstance(rho, Tensor) else found

    def _share_of_other(self, t: int | Tensor, rounds: int) -> float | Tensor:
        """Return the weight of the schedule's other radius against rho in round `t`."""
        if self.rho_rounds is not None:
            return 1 - _at_most(t, self.rho_rounds) / self.rho_rounds
        done = _at_most(t, rounds - 1) / rounds
        if self.schedule == "linear":
            return done
        return (1 - (torch.cos(pi * done) if isinstance(done, Tensor) else cos(pi * done))) / 2


def _at_most(t: int | Tensor, most: int) -> int | Tensor:
    return t.clamp(max=most) if isinstance(t, Tensor) else min(t, most)

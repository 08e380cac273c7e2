"""The perturbation of a local step with the options of a run, and the wrapper that gives them to any method."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from .errors import InputError
from .method import Context, Method
from .oracle import Oracle, adaptive_scale, teacher_gradient, unit, with_teacher, wrt_inputs
from .perturbation import Perturbation
from .wrapper import EngineWrapper, label_of


class Ascent:
    """The oracle of a step whose perturbations have the options of a run; see the function `core.oracle.ascent`."""

    def __init__(self, grad: Oracle, of: Perturbed, ctx: Context) -> None:
        """Compute the gradients by `grad`, and perturbations by the options `of` a run, in a step with `ctx`."""
        self.grad, self._of, self._ctx = grad, of, ctx

    def __call__(self, w: Tensor) -> Tensor:
        return self.grad(w)

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> Oracle:
        return with_teacher(self.grad, e, weight, tau)

    def teacher_gradient(self, w: Tensor, e: Tensor, tau: float) -> Tensor:
        return teacher_gradient(self.grad, w, e, tau)

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return wrt_inputs(self.grad, w, matrix, shift)

    def ascent(self, w: Tensor, a: Tensor, rho: float | Tensor, T: Tensor | None = None) -> Tensor:
        """Return the perturbation of `w` along `a` (*clients, d), see `core.oracle.ascent`, by the options."""
        ctx, where, options = self._ctx, self._of.where, self._of.options
        rho = options.scheduled(rho, ctx.t, ctx.rounds, ctx.lr / self._of.first_lr)
        if where is not None:
            a = torch.where(where.to(a.device), a, 0.0)
        if options.adaptive:
            T = adaptive_scale(w, options.eta, ctx.is_weight)
        return rho * self._unit(a) if T is None else rho * T * self._unit(T * a)

    def _unit(self, x: Tensor) -> Tensor:
        """Return `x` (*clients, d) divided by its norm, or each layer of it by its own."""
        if self._of.options.radius == "global":
            return unit(x)
        return torch.cat([unit(x[..., layer]) for layer in self._ctx.layers], dim=-1)


class Perturbed(EngineWrapper):
    """A wrapper of a sharpness-aware method whose perturbation has the options of a run.

    A configuration cannot name this class; `of` constructs it.
    """

    options: ClassVar[Perturbation]
    first_lr: ClassVar[float]  # the step size of round 0
    where: ClassVar[Tensor | None]  # (d,) bool, the coordinates that are perturbed; None for all

    @classmethod
    def of(cls, base: Method, options: Perturbation, first_lr: float, where: Tensor | None = None) -> Self:
        """Wrap `base`.

        first_lr: the step size of round 0. where: the coordinates that are perturbed (d,) bool, of those that `base`
        sees; None for all.
        """
        return cls(base=base)._with(options=options, first_lr=first_lr, where=where)

    @property
    def depends_on_rounds(self) -> bool:  # type: ignore[override]  # of the instance here, of the class elsewhere
        """Whether a round depends on the number of planned rounds."""
        return self.base.depends_on_rounds or self.options.depends_on_rounds

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        return self.base.step(w, client, down, Ascent(grad, self, ctx), ctx)


def check_options(method: Method, options: Perturbation) -> None:
    """Raise InputError, naming the field, for an option that does not go with the perturbation of `method`."""
    known = method.perturbation_options
    for name, value in options.changed.items():
        if name not in known:
            instead = f"it takes perturbation.{', '.join(sorted(known))}" if known else "it takes no options of it"
            raise InputError(f"perturbation.{name} = {value!r} does not go with {label_of(method)}: {instead}")

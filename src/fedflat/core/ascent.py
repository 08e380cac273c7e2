"""The perturbation of a local step with the options of a run, and the wrapper that gives them to any method."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

import torch
from torch import Tensor

from .errors import InputError
from .method import Context, Method
from .oracle import Oracle, adaptive_scale, teacher_gradient, unit, with_teacher, wrt_inputs
from .perturbation import Perturbation
from .records import Record, per_round
from .wrapper import EngineWrapper, WithFields, label_of


class Ascent:
    """The oracle of a step whose perturbations have the options of a run; see the function `core.oracle.ascent`."""

    def __init__(self, grad: Oracle, of: Perturbed, ctx: Context, mean: Tensor) -> None:
        """Compute the gradients by `grad`, and perturbations by the options `of` a run, in a step with `ctx`.

        mean: of the gradients of earlier steps, (*clients, d), 0 before the first one; of width 0 without sigma.
        """
        self.grad, self._of, self._ctx = grad, of, ctx
        self.mean = mean  # with the gradient of this step, once it was perturbed along

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
        if options.sigma:
            a, self.mean = a - options.sigma * self.mean, self._mean_with(a)
        if where is not None:
            a = torch.where(where.to(a.device), a, 0.0)
        if options.adaptive:
            T = adaptive_scale(w, options.eta, ctx.is_weight)
        return rho * self._unit(a) if T is None else rho * T * self._unit(T * a)

    def _mean_with(self, g: Tensor) -> Tensor:
        """Return the mean of the gradients so far, to which `g` (*clients, d) is added."""
        ema, k = self._of.options.ema, self._ctx.steps
        mean = ema * self.mean + (1 - ema) * g
        if isinstance(k, Tensor):
            return torch.where(k > 0, mean, g)
        return mean if k > 0 else g

    def _unit(self, x: Tensor) -> Tensor:
        """Return `x` (*clients, d) divided by its norm, or each layer of it by its own."""
        if self._of.options.radius == "global":
            return unit(x)
        return torch.cat([unit(x[..., layer]) for layer in self._ctx.layers], dim=-1)


class GradientMean(Record):
    """What a client's record has beside the method's own fields, in a round."""

    gradient_mean: Annotated[Tensor, "d", "is_friendly"] = per_round()  # m of Friendly-SAM, a gradient


class Perturbed(EngineWrapper):
    """A wrapper of a sharpness-aware method whose perturbation has the options of a run.

    A configuration cannot name this class; `of` constructs it.
    """

    client: ClassVar[Any] = WithFields(GradientMean)

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

    @property
    def is_friendly(self) -> bool:
        """Whether perturbations are those of Friendly-SAM."""
        return self.options.sigma > 0

    def init_client(self, down: Any) -> Any:
        mean = torch.zeros_like(down.w)[..., : down.w.shape[-1] if self.is_friendly else 0]
        return self._outer("client", self.base.init_client(down), gradient_mean=mean)

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        oracle = Ascent(grad, self, ctx, client.gradient_mean)
        d, after = self.base.step(w, self._inner("client", client), down, oracle, ctx)
        return d, self._outer("client", after, gradient_mean=oracle.mean)

    def finish(self, w: Tensor, client: Any, down: Any, ctx: Context) -> tuple[Any, Any]:
        up, after = self.base.finish(w, self._inner("client", client), down, ctx)
        return up, self._outer("client", after, gradient_mean=client.gradient_mean)


def check_options(method: Method, options: Perturbation) -> None:
    """Raise InputError, naming the field, for an option that does not go with the perturbation of `method`."""
    known = method.perturbation_options
    for name, value in options.changed.items():
        if name not in known:
            taken = f"takes {', '.join(sorted(known))}" if known else "has no perturbation that takes options"
            raise InputError(f"perturbation.{name} = {value!r} does not go with {label_of(method)}, which {taken}")

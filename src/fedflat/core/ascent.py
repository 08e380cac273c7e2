"""The perturbation of a local step with the options of a run, and the wrapper that gives them to any method."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from .errors import InputError
from .method import Context, Method
from .oracle import Oracle, teacher_gradient, unit, with_teacher, wrt_inputs
from .perturbation import Perturbation
from .wrapper import EngineWrapper, label_of


class Ascent:
    """The oracle of a step whose perturbations have the options of a run; see the function `core.oracle.ascent`."""

    def __init__(self, grad: Oracle, options: Perturbation, ctx: Context, first_lr: float) -> None:
        """Compute the gradients by `grad`, in a local step of the round of `ctx`; `first_lr` is that of round 0."""
        self.grad, self._options, self._ctx, self._first_lr = grad, options, ctx, first_lr

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
        ctx = self._ctx
        rho = self._options.radius(rho, ctx.t, ctx.rounds, ctx.lr / self._first_lr)
        return rho * unit(a) if T is None else rho * T * unit(T * a)


class Perturbed(EngineWrapper):
    """A wrapper of a sharpness-aware method whose perturbation has the options of a run.

    A configuration cannot name this class; `of` constructs it.
    """

    options: ClassVar[Perturbation]
    first_lr: ClassVar[float]

    @classmethod
    def of(cls, base: Method, options: Perturbation | None, first_lr: float) -> Method:
        """Wrap `base`; return `base` itself if all options have their defaults.

        first_lr: the step size of round 0.
        """
        if options is None or not options.chosen:
            return base
        return cls(base=base)._with(options=options, first_lr=first_lr)

    @property
    def depends_on_rounds(self) -> bool:  # type: ignore[override]  # of the instance here, of the class elsewhere
        """Whether a round depends on the number of planned rounds."""
        return self.base.depends_on_rounds or self.options.depends_on_rounds

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        return self.base.step(w, client, down, Ascent(grad, self.options, ctx, self.first_lr), ctx)


def check_options(method: Method, options: Perturbation) -> None:
    """Raise InputError, naming the field, for an option that does not go with the perturbation of `method`."""
    known = method.perturbation_options
    for name, value in options.chosen.items():
        if name not in known:
            instead = f"it takes perturbation.{', '.join(sorted(known))}" if known else "it takes no options of it"
            raise InputError(f"perturbation.{name} = {value!r} does not go with {label_of(method)}: {instead}")

"""Local steps that are prepared once and then taken many times."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.local import Descent, LocalState, local_step
from ...core.method import Context, Method
from ...core.objective import BatchOracle, Objective
from ...core.oracle import Oracle
from .tensor_step import StepInputs, StepNumbers, TensorStep, next_state

log = logging.getLogger(__name__)
Run = Callable[[list[Tensor]], list[Tensor]]  # takes a step: from the tensors of `StepInputs` to those of the state


class PreparedStep(ABC):
    """Takes local steps through what `prepare` makes of them, once for each form that the tensors of a step have.

    The first prepared step is compared with the plain one, since compilers make mistakes. A step that cannot be
    prepared, for whatever reason, is taken as it is, and the log says why.
    """

    participle: ClassVar[str]  # what happens to a step when it is prepared, for messages

    def __init__(self, method: Method, objective: Objective) -> None:
        self._method, self._objective, self._numbers = method, objective, StepNumbers()
        self.forms: dict[tuple[object, ...], tuple[Run, int] | None] = {}  # and each client's gradients in a step

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle no prepared steps: another process prepares its own."""
        return type(self), (self._method, self._objective)

    @property
    def works(self) -> bool:
        """False once a step could not be prepared."""
        return None not in self.forms.values()

    def __call__(
        self, method: Method, state: LocalState, down: Any, grad: Oracle, ctx: Context, descent: Descent
    ) -> LocalState:
        """One local step, as `core.local.local_step` takes it."""
        if not isinstance(grad, BatchOracle) or not self.takes(state):
            return local_step(method, state, down, grad, ctx, descent)
        if not all(x.is_contiguous() for x in (state.w, *state.client.tensors().values())):
            # The memory of the state has to look the same at every step.
            state = replace(state, w=state.w.contiguous(), client=state.client.map(Tensor.contiguous))
        numbers = self._numbers.of(ctx, int(state.steps), float(descent.lr), state.w.device)
        inputs = StepInputs(state, down, grad.batch, ctx, descent, numbers)
        tensors = inputs.tensors()
        form = self.form(tensors)
        if form not in self.forms:
            self.forms[form] = self._tried(inputs)
        prepared = self.forms[form]
        if prepared is None:
            return local_step(method, state, down, grad, ctx, descent)
        run, gradients = prepared
        return next_state(state, run(list(tensors.values())), gradients)

    def _tried(self, inputs: StepInputs) -> tuple[Run, int] | None:
        """The prepared step; None if it cannot be prepared, or does not give what the plain step gives on `inputs`."""
        step = TensorStep(self._method, self._objective, inputs)
        values = list(inputs.tensors().values())
        try:
            run = self.prepare(step, inputs)
            for found, expected in zip(run(values), step(*values), strict=True):
                if not torch.allclose(found, expected, rtol=1e-3, atol=1e-5, equal_nan=True):
                    raise ArithmeticError(f"the {self.participle} step gives other numbers")
        except Exception as error:
            reason = " ".join((str(error).strip() or type(error).__name__).splitlines()[:2])
            log.warning("the local step of %s is not %s: %s", type(self._method).__name__, self.participle, reason)
            return None
        return run, step.gradients

    def takes(self, state: LocalState) -> bool:
        """Whether steps of these clients are worth preparing."""
        return True

    @abstractmethod
    def form(self, tensors: dict[str, Tensor]) -> tuple[object, ...]:
        """A key that is equal for the tensors of two steps if one prepared step can take both."""

    @abstractmethod
    def prepare(self, step: TensorStep, inputs: StepInputs) -> Run:
        """A function that takes `step` for all tensors of the same form as `inputs`."""

"""Stacked clients whose local step is compiled as a whole, both gradients of a SAM step and the update included."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from ...core.local import Descent, Walkers, walk
from ...core.method import Context, Method
from ...core.objective import BatchOracle, Objective
from ...core.oracle import Oracle
from .tensor_step import StepInputs, TensorStep, next_walkers

log = logging.getLogger(__name__)
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)
BACKEND = "inductor"


class CompiledWalk:
    """Takes local steps through a compiled function; one for each form that batches come in, for any number of rows.

    The step is traced with stand-ins first, which leaves a list of tensor operations, and that list is compiled:
    about 5 to 10 seconds, less the next time, since the compiler keeps its work on disk. A step that cannot be
    traced (a method of one's own that asks for more than tensors) or compiled (no C++ compiler) is taken as it is.
    """

    def __init__(self, method: Method, objective: Objective) -> None:
        self._method, self._objective = method, objective
        self.forms: dict[tuple[object, ...], _Compiled | None] = {}  # by names, shapes and types of the tensors

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process compiles for itself."""
        return CompiledWalk, (self._method, self._objective)

    @property
    def works(self) -> bool:
        """False once a step could not be compiled."""
        return None not in self.forms.values()

    def __call__(self, method: Method, at: Walkers, down: Any, grad: Oracle, ctx: Context, descent: Descent) -> Walkers:
        """One local step; see `core.local.walk`."""
        # A single row is another program to the compiler, and a watched method must be called, not compiled.
        if len(at.w) == 1 or method is not self._method or not isinstance(grad, BatchOracle):
            return walk(method, at, down, grad, ctx, descent)
        # The message is one row in all rows; the walkers' memory has to look the same at every step.
        at = Walkers(at.w.contiguous(), at.client.map(Tensor.contiguous), at.velocity, at.steps)
        inputs = StepInputs(at, down, grad.batch, ctx, descent)
        tensors = inputs.tensors()
        form = tuple((name, x.shape[1:], x.dtype) for name, x in tensors.items())
        if form not in self.forms:
            self.forms[form] = self._compile(inputs)
        compiled = self.forms[form]
        if compiled is None:
            return walk(method, at, down, grad, ctx, descent)
        for _ in range(compiled.gradients):
            with grad.around():
                pass
        return next_walkers(at, compiled(list(tensors.values())))

    def _compile(self, inputs: StepInputs) -> _Compiled | None:
        """The compiled step, if it can be compiled and gives what the step gives on `inputs`."""
        step = TensorStep(self._method, self._objective, inputs)
        values = list(inputs.tensors().values())
        try:
            compiled = _Compiled(_traced(step, inputs, self._objective), step.gradients)
            for x in inputs.rows().values():
                torch._dynamo.mark_dynamic(x, 0)
            _check_equal(compiled(values), step(*values))
        except Exception as error:
            reason = " ".join((str(error).strip() or type(error).__name__).splitlines()[:2])
            log.warning("the local step of %s is not compiled: %s", type(self._method).__name__, reason)
            return None
        return compiled


def _check_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    """Raise ArithmeticError if the compiler has got something wrong; compilers have."""
    for one, other in zip(found, expected, strict=True):
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise ArithmeticError("the compiled step gives other numbers")


class _Compiled:
    """A compiled step."""

    def __init__(self, traced: nn.Module, gradients: int) -> None:
        self.gradients = gradients  # that each client takes in a step
        # In this process: a pool of compilers would outlive a killed run.
        options: Any = {"compile_threads": 1} if BACKEND == "inductor" else None
        self._run = torch.compile(traced, backend=BACKEND, fullgraph=True, options=options)

    def __call__(self, values: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            result: list[Tensor] = self._run(*values)
        return result


def _traced(step: TensorStep, inputs: StepInputs, objective: Objective) -> nn.Module:
    """The operations of `step` on stacks of any number of rows.

    The tracer takes equal sizes for one another, so it is shown as many rows as nothing else has.
    """
    rows, shared = inputs.rows(), inputs.shared()
    sizes = {size for x in (*rows.values(), *shared.values()) for size in x.shape}
    sizes.update(size for shape in objective.space.shapes.values() for size in shape)
    number = next(prime for prime in PRIMES if prime not in sizes)
    example = [x.new_zeros(number, *x.shape[1:]) for x in rows.values()] + list(shared.values())
    with torch.no_grad():
        traced: nn.Module = make_fx(step, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*example)
    return traced

"""Stacked clients whose local step is compiled as a whole, both gradients of a SAM step and the update included."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from ...core.local import Walkers
from ...core.objective import Objective
from .prepared import PreparedWalk, Run
from .tensor_step import StepInputs, TensorStep

PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)
BACKEND: Any = "inductor"


class CompiledWalk(PreparedWalk):
    """Compiles a step for any number of rows; one for each form that batches come in.

    The step is traced with stand-ins first, which leaves a list of tensor operations, and that list is compiled:
    about 5 to 10 seconds, less the next time, since the compiler keeps its work on disk. A step that asks for more
    than tensors cannot be traced, and without a C++ compiler none can be compiled.
    """

    def takes(self, at: Walkers) -> bool:
        """A single row is another program to the compiler, and not worth it."""
        return len(at.w) > 1

    def form(self, tensors: dict[str, Tensor]) -> tuple[object, ...]:
        """Everything but the number of rows."""
        return tuple((name, x.shape[1:], x.dtype) for name, x in tensors.items())

    def prepare(self, step: TensorStep, inputs: StepInputs) -> Run:
        """The compiled step; compiled when it first runs."""
        # In this process: a pool of compilers would outlive a killed run.
        options: Any = {"compile_threads": 1} if BACKEND == "inductor" else None
        traced = _traced(step, inputs, self._objective)
        compiled = torch.compile(traced, backend=BACKEND, fullgraph=True, options=options)
        for x in inputs.rows().values():
            torch._dynamo.mark_dynamic(x, 0)

        def run(values: list[Tensor]) -> list[Tensor]:
            with torch.no_grad():
                result: list[Tensor] = compiled(*values)
            return result

        return run


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

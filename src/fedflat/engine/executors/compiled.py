"""Stacked clients whose local step is compiled as a whole, both gradients of a SAM step and the update included."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...core.local import LocalState
from .prepared import PreparedStep, Run
from .tensor_step import StepInputs, TensorStep

if TYPE_CHECKING:
    from torch._subclasses import FakeTensorMode

PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)


class CompiledStep(PreparedStep):
    """Compiles a step for any number of rows; one for each form that batches come in.

    The step is traced with stand-ins first, which leaves a list of tensor operations, and that list is compiled:
    about 5 to 10 seconds, less the next time, since the compiler keeps its work on disk. A step that asks for more
    than tensors cannot be traced, and without a C++ compiler none can be compiled.
    """

    participle = "compiled"

    def takes(self, state: LocalState) -> bool:
        """A single row is another program to the compiler, and not worth it."""
        return len(state.w) > 1

    def form(self, tensors: dict[str, Tensor]) -> tuple[object, ...]:
        """Everything but the number of rows."""
        return tuple((name, x.shape[1:], x.stride(), x.dtype) for name, x in tensors.items())

    def prepare(self, step: TensorStep, inputs: StepInputs) -> Run:
        """The compiled step."""
        compiled = compile_graph(*_traced(step, inputs, self._objective.space.shapes.values()))

        def run(values: list[Tensor]) -> list[Tensor]:
            with torch.no_grad():
                result: list[Tensor] = compiled(*values)
            return result

        return run


def compile_graph(graph: GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """What computes `graph`, for any number of rows if `examples` has a symbol for that.

    What `torch.compile` adds to it at every call, to find out whether it still fits, takes longer than a step of a
    small model.
    """
    from torch._inductor import standalone_compile  # takes a second to import, and few runs compile

    # In this process: a pool of compilers would outlive a killed run.
    options = {"config_patches": {"compile_threads": 1}}
    return standalone_compile(graph, examples, options=options)


def _traced(step: TensorStep, inputs: StepInputs, shapes: Iterable[torch.Size]) -> tuple[GraphModule, list[Tensor]]:
    """The operations of `step` on stacks of any number of rows, and the stand-ins that it was traced with.

    `shapes` are those of the parameters. The tracer may take a size for another that it equals, so it is shown as
    many rows as nothing else has.
    """
    # Here, because they import sympy, which takes half a second, and few runs compile.
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    rows, shared = inputs.rows(), inputs.shared()
    sizes = {size for shape in (*shapes, *(x.shape for x in (rows | shared).values())) for size in shape}
    number = next(prime for prime in PRIMES if prime not in sizes)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    examples = [_any_number(mode, number, x) for x in rows.values()]
    examples += [mode.from_tensor(x, static_shapes=True) for x in shared.values()]
    with torch.no_grad():
        return make_fx(step, _allow_non_fake_inputs=True)(*examples), examples


def _any_number(mode: FakeTensorMode, number: int, x: Tensor) -> Tensor:
    """A stand-in for `number` rows like those of `x`, that stands for any number; equal rows lie in one place."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    example = x.new_zeros(1 if x.stride(0) == 0 else number, *x.shape[1:]).expand(number, *x.shape[1:])
    sizes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (x.ndim - 1)]
    return mode.from_tensor(example, symbolic_context=StatelessSymbolicContext(sizes))

"""Executors that train many clients at once, as rows of one tensor, with a plain or a compiled local step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ..adapters import adapted_network
from ..core.errors import StackingError
from ..core.local import LocalState
from ..core.objective import Batch
from ..core.oracle import Oracle
from ..metrics.flatness.passes import Footprint
from ..rounds.batches import BatchPlan
from ..rounds.executor import Executor
from .concatenation import distribute
from .prepared import PreparedStep, Run, StepInputs, TensorStep

if TYPE_CHECKING:
    from torch._subclasses import FakeTensorMode

PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113)


class CompiledStep(PreparedStep):
    """Compiles a step for any number of rows, once for each form of the batches.

    The step is traced with fake tensors into a graph of tensor operations, and the graph is compiled. This takes 5 to
    10 seconds, or less if the graph is in the compiler's cache on disk. A step that uses more than tensors cannot be
    traced, and without a C++ compiler no step can be compiled.
    """

    participle = "compiled"

    def takes(self, state: LocalState) -> bool:
        """Tell whether there are several rows: to compile for a single row would cost more than it saves."""
        return len(state.w) > 1

    def form(self, tensors: dict[str, Tensor]) -> tuple[object, ...]:
        """Return names, shapes without the first axis, strides and dtypes of all tensors."""
        return tuple((name, x.shape[1:], x.stride(), x.dtype) for name, x in tensors.items())

    def prepare(self, step: TensorStep, inputs: StepInputs) -> Run:
        """Compile the step."""
        graph, examples = _traced(step, inputs, self._objective.space.shapes.values())
        compiled = compile_graph(distribute(graph), examples)

        def run(values: list[Tensor]) -> list[Tensor]:
            with torch.no_grad():
                result: list[Tensor] = compiled(*values)
            return result

        return run


def compile_graph(graph: GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """Compile `graph`, for any number of rows if the rows of `examples` are symbolic.

    `torch.compile` is not used, because its guards take longer at every call than a step of a small model.
    """
    from torch._inductor import standalone_compile  # takes a second to import, and few runs compile

    # In this process: a pool of compilers would outlive a killed run.
    options = {"config_patches": {"compile_threads": 1}}
    return standalone_compile(graph, examples, options=options)


def _traced(step: TensorStep, inputs: StepInputs, shapes: Iterable[torch.Size]) -> tuple[GraphModule, list[Tensor]]:
    """Trace `step` for stacks with any number of rows; return the graph and the fake tensors of its inputs.

    shapes: the shapes of the parameters. The tracer may confuse equal sizes, so the number of rows in the trace differs
    from all other sizes. Raises StackingError if the trace is for this number of rows alone.
    """
    # Here, because they import sympy, which takes half a second, and few runs compile.
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    rows, shared = inputs.rows(), inputs.shared()
    sizes = {size for shape in (*shapes, *(x.shape for x in (rows | shared).values())) for size in shape}
    number = next(prime for prime in PRIMES if prime not in sizes)
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    examples = [_any_number(mode, number, x) for x in rows.values()]
    examples += [mode.from_tensor(x, static_shapes=True) for x in shared.values()]
    with torch.no_grad(), _without_logged_tracebacks():
        graph = make_fx(step, _allow_non_fake_inputs=True)(*examples)
    if number in shape_env.replacements.values():  # it would be compiled, and fail for other numbers
        raise StackingError("an operation fixes the number of clients, as stacked convolutions do")
    return graph, examples


@contextmanager
def _without_logged_tracebacks() -> Iterator[None]:
    """Keep torch from logging the traceback of an error that its tracer raises anyway, as torch 2.8 does."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _any_number(mode: FakeTensorMode, number: int, x: Tensor) -> Tensor:
    """Return a fake tensor like `x`, but with a symbolic number of rows; expanded rows stay expanded."""
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    example = x.new_zeros(1 if x.stride(0) == 0 else number, *x.shape[1:]).expand(number, *x.shape[1:])
    sizes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (x.ndim - 1)]
    return mode.from_tensor(example, symbolic_context=StatelessSymbolicContext(sizes))


class Stacked(Executor):
    """Trains many clients at once: their models are rows of one tensor. Clients without steps left leave the stack."""

    numbers_at_once = 2_000_000  # most elements in a tensor of parameters or of samples
    # Most bytes of activations, estimated, for models with adapters. On the CPU larger stacks are not faster.
    bytes_at_once, bytes_on_gpu = 2**25, 2**30

    @cached_property
    def chunk(self) -> int:
        data = self.batches.data
        samples = self.batches.size * data.x[0].numel()
        most = int(max(1, self.numbers_at_once // max(self.objective.space.d, samples)))
        return most if adapted_network(self.objective.module) is None else max(1, min(most, self._most_in_memory()))

    def _most_in_memory(self) -> int:
        """Return the number of clients whose activations fit into memory.

        This limit is needed with adapters only, because they are small compared with the model's activations. Without
        adapters, the number of parameters limits the stack.
        """
        data = self.batches.data
        most = self.bytes_at_once if data.y.device.type == "cpu" else self.bytes_on_gpu
        sample = Batch(data.inputs(torch.zeros(1, dtype=torch.int64, device=data.y.device)), data.y[:1])
        with self.objective.evaluating():
            return int(most // (self.batches.size * Footprint(self.objective, sample).gradient))

    def _steps(self, plan: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        for k, active in enumerate(plan.active()):
            yield self._oracle(plan.samples[:active, k], plan, active, k, self.batches.always_full), active


class Compiled(Stacked):
    """Trains many clients at once with a compiled local step; see `CompiledStep`.

    A call has less overhead than without compiling. So stacks can be smaller, and a step's vectors stay in the
    processor's cache.
    """

    numbers_at_once = 1_000_000

    @cached_property
    def chunk(self) -> int:
        """The most clients in a stack, at least two: a single client is not compiled."""
        return max(2, super().chunk)

    @cached_property
    def step(self) -> CompiledStep:
        """The function that takes local steps."""
        return CompiledStep(self.method, self.objective)

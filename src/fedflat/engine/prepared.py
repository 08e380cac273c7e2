"""Local steps that are prepared once, by a compiler or as a CUDA graph, and the executor that uses CUDA graphs."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ..core.descent import Descent
from ..core.local import LocalState, local_step
from ..core.method import Context, Method
from ..core.objective import Batch, BatchOracle, Objective
from ..core.oracle import Oracle
from ..core.records import Record
from ..data.preparation import to_device
from ..rounds.batches import BatchPlan
from ..rounds.executor import Sequential

log = logging.getLogger(__name__)
Run = Callable[[list[Tensor]], list[Tensor]]  # takes a step: maps the tensors of `StepInputs` to the next state
NUMBERS = ("t", "share", "sampled", "steps", "lr")  # scalars of a step; they change between steps or rounds
WARM_UP = 3  # steps before the recording, as torch advises: libraries choose their kernels in the first ones


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a local step besides the method: the clients' state, the message, the batch and scalars."""

    state: LocalState
    down: Any
    batch: Batch
    ctx: Context
    descent: Descent
    numbers: Tensor  # from `StepNumbers`

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors whose values may change, by name."""
        return self.rows() | self.shared()

    def rows(self) -> dict[str, Tensor]:
        """Return the tensors that differ between clients, by name; in a stack they have a client axis."""
        named = {"w": self.state.w, "loss": torch.as_tensor(self.state.loss), "lr_factors": self.state.lr_factors}
        for role, record in self.records().items():
            named |= {f"{role}.{name}": x for name, x in record.tensors().items()}
        named |= {f"batch.{name}": x for name, x in vars(self.batch).items()}
        if isinstance(self.ctx.local_steps, Tensor):
            named["local_steps"] = self.ctx.local_steps
        return {name: x for name, x in named.items() if x is not None}

    def records(self) -> dict[str, Record]:
        """Return the records of a step by their role, without the states that the optimiser has not."""
        state = self.state
        records = {"client": state.client, "down": self.down, "optimizer": state.optimizer}
        records |= {"own_optimizer": state.own_optimizer}
        return {role: record for role, record in records.items() if record is not None}

    def shared(self) -> dict[str, Tensor]:
        """Return the tensors that all clients share, by name."""
        shared, is_weight = {"numbers": self.numbers}, self.ctx.is_weight
        return shared if is_weight is None else shared | {"is_weight": is_weight}


class StepNumbers:
    """The scalars of each local step (`NUMBERS`) as a tensor (5,), made for many steps of a round at once.

    To make one tensor for each step would take as long as the step of a small model. The dtype is float64, which has
    the precision of Python's numbers.
    """

    AT_ONCE = 16  # steps whose scalars are made at once

    def __init__(self) -> None:
        self._round: tuple[float, ...] = ()
        self._steps: list[Tensor] = []

    def of(self, ctx: Context, steps: int, lr: float, device: torch.device) -> Tensor:
        """Return the scalars of local step `steps`, counted from 0, in the round of `ctx`."""
        if self._round != (ctx.t, ctx.share, ctx.sampled, lr):
            self._round, self._steps = (ctx.t, ctx.share, ctx.sampled, lr), []
        while len(self._steps) <= steps:
            first = len(self._steps)
            rows = [(ctx.t, ctx.share, ctx.sampled, k, lr) for k in range(first, first + self.AT_ONCE)]
            self._steps += to_device(torch.tensor(rows, dtype=torch.float64), device).unbind()
        return self._steps[steps]


class TensorStep:
    """The local step of one method on one objective as a function of `StepInputs.tensors()`.

    Scalars become tensors of shape (), so that no changing value is compiled as a constant. If a method's step needs
    more than the oracle and these scalars, it is no function of these tensors, and the call raises an error.
    """

    def __init__(self, method: Method, objective: Objective, example: StepInputs) -> None:
        """Take the names of tensors, and constants such as the layers, from `example`."""
        self._method, self._objective = method, objective
        self._layers, self._rounds, self._descent = example.ctx.layers, example.ctx.rounds, example.descent
        self._kinds = {role: type(record) for role, record in example.records().items()}
        self.names = list(example.tensors())
        self.gradients = 0  # minibatch gradients of a client in the last call

    def __call__(self, *values: Tensor) -> list[Tensor]:
        """Return the tensors of the next state: w, loss, step-size factors, and the optimisers' and clients' records.

        Factors and the optimisers' records are left out if the state has none.
        """
        named = dict(zip(self.names, values, strict=True))
        numbers = dict(zip(NUMBERS, named["numbers"].unbind(), strict=True))
        steps, lr = numbers.pop("steps"), numbers.pop("lr")
        known: dict[str, Any] = numbers | {"is_weight": named.get("is_weight"), "layers": self._layers}
        ctx: Any = Context(**known, lr=lr, local_steps=named.get("local_steps", 1.0), rounds=self._rounds)  # type: ignore[arg-type]
        records: dict[str, Any] = {role: _record(kind, named, f"{role}.") for role, kind in self._kinds.items()}
        down, client, optimizer = records.pop("down"), records.pop("client"), records.pop("optimizer", None)
        factors = named.get("lr_factors")
        at = LocalState(named["w"], client, optimizer, steps, loss=named["loss"], lr_factors=factors, **records)
        batch = Batch(**{f.name: named.get(f"batch.{f.name}") for f in fields(Batch)})  # type: ignore[arg-type]
        oracle, descent = BatchOracle(self._objective, batch), replace(self._descent, lr=lr)
        after = local_step(self._method, at, down, oracle, ctx, descent)
        self.gradients = after.gradients
        further = [] if after.lr_factors is None else [after.lr_factors]
        for record in (after.optimizer, after.own_optimizer, after.client):
            further += [] if record is None else record.tensors().values()
        return [after.w, torch.as_tensor(after.loss), *further]


def next_state(before: LocalState, values: list[Tensor], gradients: int) -> LocalState:
    """Return the state after a `TensorStep` that returned `values` and computed `gradients` gradients per client."""
    w, loss, *rest = values
    factors = None if before.lr_factors is None else rest.pop(0)
    optimizer = before.optimizer and _next(before.optimizer, rest)
    own = before.own_optimizer and _next(before.own_optimizer, rest)
    client = _next(before.client, rest)
    return LocalState(w, client, optimizer, before.steps + 1, before.gradients + gradients, loss, factors, own)


def _next(before: Record, values: list[Tensor]) -> Any:
    """Return a record of the class of `before` from the first of `values`, which are removed from the list."""
    return type(before)(**{name: values.pop(0) for name in before.tensors()})


def _record(kind: Callable[..., Record], named: dict[str, Tensor], prefix: str) -> Any:
    return kind(**{name.removeprefix(prefix): x for name, x in named.items() if name.startswith(prefix)})


class PreparedStep(ABC):
    """Takes local steps with functions that `prepare` makes, one for each form of a step's tensors.

    The first result of each function is compared with the result of the plain (unprepared) step, since compilers make
    mistakes. If a step cannot be prepared, the plain step is used, and the log gives the reason.
    """

    participle: ClassVar[str]  # for messages: "the step is not ..."

    def __init__(self, method: Method, objective: Objective) -> None:
        self._method, self._objective, self._numbers = method, objective, StepNumbers()
        self.forms: dict[tuple[object, ...], tuple[Run, int] | None] = {}  # the function, and gradients per client

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle no prepared steps: another process prepares its own."""
        return type(self), (self._method, self._objective)

    @property
    def works(self) -> bool:
        """Whether all steps so far could be prepared."""
        return None not in self.forms.values()

    def __call__(
        self, method: Method, state: LocalState, down: Any, grad: Oracle, ctx: Context, descent: Descent
    ) -> LocalState:
        """Take one local step, as `core.local.local_step` does."""
        if not isinstance(grad, BatchOracle) or not self.takes(state):
            return local_step(method, state, down, grad, ctx, descent)
        if not all(x.is_contiguous() for x in (state.w, *state.client.tensors().values())):
            # The memory layout of the state must be the same at every step.
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
        """Return the prepared step; None if preparing fails, or if it differs from the plain step on `inputs`."""
        step = TensorStep(self._method, self._objective, inputs)
        values = list(inputs.tensors().values())
        try:
            run = self.prepare(step, inputs)
            for result, expected in zip(run(values), step(*values), strict=True):
                if not torch.allclose(result, expected, rtol=1e-3, atol=1e-5, equal_nan=True):
                    raise ArithmeticError(f"the {self.participle} step gives other numbers")
        except Exception as error:
            reason = " ".join((str(error).strip() or type(error).__name__).splitlines()[:2])
            log.warning("the local step of %s is not %s: %s", type(self._method).__name__, self.participle, reason)
            return None
        return run, step.gradients

    def takes(self, state: LocalState) -> bool:
        """Tell whether to prepare the step for the clients in `state`."""
        return True

    @abstractmethod
    def form(self, tensors: dict[str, Tensor]) -> tuple[object, ...]:
        """Return a key; one prepared step serves all steps whose tensors have the same key."""

    @abstractmethod
    def prepare(self, step: TensorStep, inputs: StepInputs) -> Run:
        """Return a function that takes `step` for all tensors of the same form as `inputs`."""


class GraphedStep(PreparedStep):
    """Records a step as a CUDA graph once and replays it for every step and client: one launch instead of hundreds.

    Inputs are copied into the graph's own tensors, and results are copied out of them. If no graph can be recorded, the
    plain step is used.
    """

    participle = "recorded as a CUDA graph"

    def form(self, tensors: dict[str, Tensor]) -> tuple[object, ...]:
        """Return names, shapes and dtypes of all tensors; a recording fits only tensors that agree in all of these."""
        return tuple((name, x.shape, x.dtype) for name, x in tensors.items())

    def prepare(self, step: TensorStep, inputs: StepInputs) -> Run:
        """Record the step, and return a function that replays it."""
        places = [x.clone() for x in inputs.tensors().values()]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                step(*places)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step(*places)

        def run(values: list[Tensor]) -> list[Tensor]:
            for place, x in zip(places, values, strict=True):
                place.copy_(x)
            graph.replay()
            return [x.clone() for x in results]

        return run


class Graphed(Sequential):
    """Trains one client after another, and replays a CUDA graph for each step.

    Short batches are filled up and their samples have weights, so that one recording fits all batches.
    """

    @cached_property
    def step(self) -> GraphedStep:
        """The function that takes local steps."""
        return GraphedStep(self.method, self.objective)

    def _steps(self, plan: BatchPlan) -> Iterator[tuple[Oracle, int]]:
        size = self.batches.size
        samples = functional.pad(plan.samples[0], (0, size - plan.samples.shape[-1]), value=-1)
        for k in range(int(plan.steps[0])):
            yield self._oracle(samples[k], plan, 1, k, full=False), 1

"""A round worked out for somebody who watches, and not taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.local import Descent, LocalResult
from ..core.method import Context, Method
from ..core.oracle import Oracle, with_teacher, wrt_inputs
from ..data.federated import Index
from ..metrics.flatness.subject import RoundObserver
from ..rounds.batches import BatchPlan
from ..rounds.executor import Executor


class _Pointing:
    """An oracle that remembers where it was asked last: the point of the step's descent gradient."""

    def __init__(self, grad: Oracle) -> None:
        self._grad = grad
        self.point: Tensor | None = None

    def __call__(self, w: Tensor) -> Tensor:
        self.point = w
        return self._grad(w)

    def with_teacher(self, e: Tensor, weight: float, tau: float) -> Oracle:
        taught = with_teacher(self._grad, e, weight, tau)

        def asked(w: Tensor) -> Tensor:
            self.point = w
            return taught(w)

        return asked

    def wrt_inputs(self, w: Tensor, matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.point = w
        return wrt_inputs(self._grad, w, matrix, shift)

    def noted(self, gradient: Tensor) -> Tensor:
        """See `core.oracle.as_descent_gradient`."""
        noted = getattr(self._grad, "noted", None)
        return gradient if noted is None else noted(gradient)


@dataclass
class _Watched:
    """A method that shows every local step to a watch; everything else is the method's own."""

    method: Method
    watch: RoundObserver
    clients: Index  # those that train

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def step(self, w: Tensor, client: Any, down: Any, grad: Oracle, ctx: Context) -> tuple[Tensor, Any]:
        pointing = _Pointing(grad)
        direction, kept = self.method.step(w, client, down, pointing, ctx)
        moved = torch.zeros_like(w) if pointing.point is None else pointing.point - w
        rows = w.reshape(-1, w.shape[-1])
        self.watch.step(self.clients[: len(rows)], int(ctx.steps), rows, moved.reshape(rows.shape))
        return direction, kept


@dataclass
class ObservedExecutor:
    """An executor whose clients are watched. Gradients that it takes are not the run's."""

    executor: Executor
    watch: RoundObserver
    method: Method = field(init=False)

    def __post_init__(self) -> None:
        self.method, self.batches = self.executor.method, self.executor.batches

    @property
    def chunk(self) -> int:
        """The most clients given to `run` at once."""
        return self.executor.chunk

    def run(self, work: BatchPlan, down: Any, client: Any, ctx: Context, descent: Descent) -> LocalResult:
        """See `Executor.run`."""
        with self._watched(work.clients):
            result = self.executor.run(work, down, client, ctx, descent)
        self.watch.done(work.clients, result.w)
        return result

    @contextmanager
    def _watched(self, clients: Index) -> Iterator[None]:
        method, gradients = self.executor.method, self.executor.gradients
        self.executor.method = _Watched(method, self.watch, clients)  # type: ignore[assignment]
        try:
            yield
        finally:
            self.executor.method, self.executor.gradients = method, gradients

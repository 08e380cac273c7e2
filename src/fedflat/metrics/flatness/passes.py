"""Gradients that can be differentiated again, Hessian products, and the memory that they need."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...core.objective import Batch, Objective


def gradient_with_graph(objective: Objective, w: Tensor, batch: Batch) -> Tensor:
    """Compute the gradient at `w` (d,) and keep its graph, for a second derivative; `w` must require a gradient.

    Fused attention has no second derivative, so attention uses its plain kernel here.
    """
    with torch.enable_grad(), objective.evaluating(), sdpa_kernel(SDPBackend.MATH):
        gradient: Tensor = torch.autograd.grad(objective.loss(w, batch), w, create_graph=True)[0]
    return gradient


def hessian_products(gradient: Tensor, w: Tensor, vectors: Tensor, keep: bool) -> Tensor:
    """Multiply the Hessian with `vectors` (k, d), in a pass through the graph of `gradient`; `keep` keeps the graph."""
    if not gradient.requires_grad:  # it does not depend on w
        return torch.zeros_like(vectors)
    one = len(vectors) == 1
    # The gradient of g v is H v. For a scalar, torch does not import its symbolic algebra, which takes half a second.
    outputs, along = (gradient @ vectors[0], None) if one else (gradient, vectors)
    with sdpa_kernel(SDPBackend.MATH):
        products: Tensor = torch.autograd.grad(
            outputs, w, along, retain_graph=keep, is_grads_batched=not one, materialize_grads=True
        )[0]
    return products[None] if one else products


class Footprint:
    """Bytes by which the peak memory of a pass grows with one more sample.

    torch's allocations are counted after each operation, on two and on three samples. Both passes have the same
    operations, so the largest difference is the growth of the peak for any larger batch (with LeNet, a
    process grows by 1.30 MB per sample, and the count is 1.28 MB; with ResNet-18, these are 14.5 and 14.3 MB). The
    count excludes allocations inside libraries and memory that does not grow with the samples.
    """

    def __init__(self, objective: Objective, sample: Batch) -> None:
        """Count for `sample`, a batch of one."""
        self.objective, self.sample = objective, sample

    @cached_property
    def gradient(self) -> float:
        """Bytes per sample in a gradient."""
        return max(_growth(lambda n: self.objective.gradient(self._parameters(), self._samples(n))))

    @cached_property
    def graph(self) -> float:
        """Bytes per sample in a gradient that is kept with its graph."""
        return self._graph_and_product[0]

    @cached_property
    def product(self) -> float:
        """Bytes per sample in a Hessian product with one vector, in addition to those of the graph."""
        return self._graph_and_product[1] - self._graph_and_product[0]

    @cached_property
    def _graph_and_product(self) -> tuple[float, float]:
        """Bytes per sample of an autograd graph, and of the graph while a Hessian product is computed from it."""
        graph = _growth(self._graph)
        return graph[-1], max(graph + _growth(self._product))

    def _graph(self, n: int) -> Tensor:
        return gradient_with_graph(self.objective, self._parameters().requires_grad_(), self._samples(n))

    def _product(self, n: int) -> Tensor:
        w = self._parameters().requires_grad_()
        gradient = gradient_with_graph(self.objective, w, self._samples(n))
        return hessian_products(gradient, w, w.detach()[None], keep=True)

    def _parameters(self) -> Tensor:
        return self.objective.space.flatten(self.objective.module)

    def _samples(self, n: int) -> Batch:
        x, y = self.sample.x, self.sample.y
        return Batch(x.repeat(n, *[1] * (x.ndim - 1)), y.repeat(n, *[1] * (y.ndim - 1)))


def _growth(run: Callable[[int], object]) -> list[float]:
    """Measure the growth of the allocated bytes per sample after each operation of `run`, a pass over n samples.

    If the number of operations depends on n, return a third of the bytes for three samples, at the peak and at the end.
    """
    two, three = allocated(lambda: run(2)), allocated(lambda: run(3))
    if len(two) == len(three):
        return [b - a for a, b in zip(two, three, strict=True)]
    return [max(three) / 3, three[-1] / 3]


def allocated(run: Callable[[], object]) -> list[int]:
    """Count the bytes of the live tensors that `run` has made, after each operation; its result stays alive."""
    allocations = _Allocations()
    with allocations:
        _result = run()
    return allocations.after_each


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    """Counts the bytes of the storages that operations make, as long as the storages are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.after_each: list[int] = []
        self._alive: dict[int, int] = {}  # bytes by storage

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: with True, torch would import its compiler, which takes a second, but nothing is compiled."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        self.after_each.append(sum(self._alive.values()))
        return made

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._alive:
            self._alive[key] = storage.nbytes()
            weakref.finalize(storage, self._alive.pop, key, None)

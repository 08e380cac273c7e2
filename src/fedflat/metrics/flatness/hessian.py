"""Products of the loss Hessian with vectors, by double backward on the flat parameter vector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .landscape import Landscape
from .passes import gradient_with_graph, multiplied

NUMBERS_AT_ONCE = 2_000_000  # in the vectors that are multiplied in one pass
VECTORS_TO_A_GRAPH = 8  # that is built again for each: it costs an eighth of a gradient then


@dataclass(frozen=True)
class _Graph:
    """The gradient on some samples, ready to be differentiated again."""

    share: float  # of all samples
    w: Tensor
    gradient: Tensor


class Hessian:
    """H at `w` (d,), the Hessian of `landscape`; call it to multiply.

    The graph of the gradient is kept for all samples if it fits into the landscape's memory: a product
    then costs 1.8 gradients (measured on LeNet), else 2.8 for one vector and towards 1.8 for many.
    """

    def __init__(self, landscape: Landscape, w: Tensor) -> None:
        self.landscape, self.w = landscape, w.detach()
        self.products = 0  # vectors multiplied so far
        footprint = landscape.footprint
        self._chunk = landscape.at_once(footprint.graph + footprint.product)  # samples in one pass
        self._kept = list(self._graphs()) if self._chunk == len(landscape) else None

    def __call__(self, v: Tensor) -> Tensor:
        """H v for one vector (d,) or for each of several, (k, d); float64, as samples are summed."""
        vectors = v.reshape(-1, v.shape[-1]).to(self.w.dtype)
        total = torch.zeros(vectors.shape, dtype=torch.float64, device=self.w.device)
        for graph in self._kept or self._graphs():
            for start in range(0, len(vectors), self._together):
                here = slice(start, start + self._together)
                keep = self._kept is not None or here.stop < len(vectors)
                total[here] += graph.share * multiplied(graph.gradient, graph.w, vectors[here], keep)
        if not torch.isfinite(total).all():
            raise FloatingPointError("products with the Hessian of the loss are not finite")
        self.products += len(vectors)
        return total.reshape(v.shape)

    def _graphs(self) -> Iterator[_Graph]:
        """Chunk by chunk."""
        for some in torch.split(self.landscape.samples, self._chunk):
            batch = self.landscape.batch(some)
            w = self.w.clone().requires_grad_()
            yield _Graph(self.landscape.share(batch), w, gradient_with_graph(self.landscape.objective, w, batch))

    @property
    def block(self) -> int:
        """How many vectors are best multiplied by one call."""
        if self._kept is not None:
            return self._together
        fits = self.landscape.memory // (16 * self.landscape.d)  # each with its product
        return max(self._together, min(VECTORS_TO_A_GRAPH, fits))

    @property
    def _together(self) -> int:
        """How many vectors are multiplied in one pass: as many as memory allows of a dense model, one of any other.

        Convolutions are slower for a stack of vectors than for one after another (measured: 2.4 to 1.7).
        """
        modules = self.landscape.objective.module.modules()
        if any(isinstance(module, nn.modules.conv._ConvNd) for module in modules):
            return 1
        footprint, left = self.landscape.footprint, self.landscape.memory / self._chunk
        fits = (left - footprint.graph) / max(1.0, footprint.product)
        return max(1, int(min(fits, NUMBERS_AT_ONCE / self.landscape.d)))

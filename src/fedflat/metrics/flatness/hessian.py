"""Products of the loss Hessian with vectors, by double backward on the flat parameter vector."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from .passes import gradient_with_graph, hessian_products
from .subject import Landscape

NUMBERS_AT_ONCE = 2_000_000  # in the vectors that are multiplied in one pass
VECTORS_PER_GRAPH = 8  # if a graph is built for each call: it then costs an eighth of a gradient per vector


class Hessian:
    """The Hessian H of `landscape` at `w` (d,). Calling it multiplies vectors with H.

    The graph of the gradient is kept if that for all samples fits into the landscape's memory: a product
    then costs 1.8 gradients (measured on LeNet), otherwise 2.8 for one vector and nearly 1.8 for many.
    """

    def __init__(self, landscape: Landscape, w: Tensor) -> None:
        self.landscape, self.w = landscape, w.detach()
        self.products = 0  # vectors multiplied so far
        footprint = landscape.footprint
        self._chunk = landscape.at_once(footprint.graph + footprint.product)  # samples in one pass
        self._kept = list(self._graphs()) if self._chunk == len(landscape) else None  # None: built for each call

    def __call__(self, v: Tensor) -> Tensor:
        """H v for one vector (d,) or each of several (k, d), in float64, the precision of the sum over samples."""
        vectors = v.reshape(-1, v.shape[-1]).to(self.w.dtype)
        total = torch.zeros(vectors.shape, dtype=torch.float64, device=self.w.device)
        for share, w, gradient in self._kept or self._graphs():
            for start in range(0, len(vectors), self._together):
                some = slice(start, start + self._together)
                keep = self._kept is not None or some.stop < len(vectors)
                total[some] += share * hessian_products(gradient, w, vectors[some], keep)
        if not torch.isfinite(total).all():
            raise FloatingPointError("products with the Hessian of the loss are not finite")
        self.products += len(vectors)
        return total.reshape(v.shape)

    def _graphs(self) -> Iterator[tuple[float, Tensor, Tensor]]:
        """For one chunk of samples after another: its share of all, w, and the gradient at w with its graph."""
        for some in torch.split(self.landscape.samples, self._chunk):
            batch = self.landscape.batch(some)
            w = self.w.clone().requires_grad_()
            yield self.landscape.share(batch), w, gradient_with_graph(self.landscape.objective, w, batch)

    @property
    def block(self) -> int:
        """The best number of vectors for one call."""
        if self._kept is not None:
            return self._together
        fits = self.landscape.memory // (16 * self.landscape.d)  # vectors and their products
        return max(self._together, min(VECTORS_PER_GRAPH, fits))

    @property
    def _together(self) -> int:
        """The number of vectors in one pass: with convolutions one, otherwise as many as the memory allows.

        Convolutions are slower with a stack of vectors than with one after another (measured: 2.4 to 1.7).
        """
        modules = self.landscape.objective.module.modules()
        if any(isinstance(module, nn.modules.conv._ConvNd) for module in modules):
            return 1
        footprint, left = self.landscape.footprint, self.landscape.memory / self._chunk
        fits = (left - footprint.graph) / max(1.0, footprint.product)
        return max(1, int(min(fits, NUMBERS_AT_ONCE / self.landscape.d)))

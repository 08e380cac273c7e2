"""Products of the loss Hessian with vectors, by double backward, and Lanczos iteration with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from .passes import gradient_with_graph, hessian_products
from .subject import Landscape

NUMBERS_AT_ONCE = 2_000_000  # elements of the vectors that are multiplied in one pass
VECTORS_PER_GRAPH = 8  # in a call that builds a graph, which then costs an eighth of a gradient per vector


class Hessian:
    """The Hessian H of `landscape` at `w` (d,). Calling this object multiplies vectors with H.

    The graph of the gradient on all samples is kept if it fits into the landscape's memory. A product then costs 1.8
    gradients (measured on LeNet). Otherwise it costs 2.8 gradients for one vector, and nearly 1.8 per vector for many.
    """

    def __init__(self, landscape: Landscape, w: Tensor) -> None:
        self.landscape, self.w = landscape, w.detach()
        self.products = 0  # vectors multiplied so far
        footprint = landscape.footprint
        self._chunk = landscape.at_once(footprint.graph + footprint.product)  # samples in one pass
        self._kept = list(self._graphs()) if self._chunk == len(landscape) else None  # None: built for each call

    def __call__(self, v: Tensor) -> Tensor:
        """Compute H v for one vector (d,) or several (k, d); float64, because sums over samples are in float64."""
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
        """Yield for each chunk of samples the chunk's share of all samples, w, and the gradient at w with its graph."""
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


class Krylov:
    """An orthonormal basis Q (m, d) of the Krylov space of a vector, and T = Q H Q' (m, m); one product per vector.

    Every new vector is orthogonalised twice against all others (twice is enough: Giraud et al., 2005), so that
    no eigenvalue is found more than once. If the space is invariant under H, the basis continues with a random
    vector, up to all d dimensions, and T is block-diagonal.
    """

    def __init__(self, hessian: Hessian, start: Tensor, room: int) -> None:
        """Begin with the nonzero vector `start` (d,); the basis has at most `room` vectors of the same dtype."""
        self.hessian, self.d, self.room = hessian, len(start), min(room, len(start))
        self.m = 0
        self.beta = 0.0  # ||H Q' - Q' T||: H maps out of the space along the next vector only
        self.rounding = 0.0  # error of a product with a unit vector: a few units in the last place, here ten
        self._vectors = torch.empty(self.room + 1, self.d, dtype=start.dtype, device=start.device)
        self._vectors[0] = start / start.norm()
        self._T = torch.zeros(self.room, self.room, dtype=torch.float64)
        self._random = np.random.default_rng(0)

    @property
    def basis(self) -> Tensor:
        """Q (m, d)."""
        return self._vectors[: self.m]

    @property
    def projected(self) -> Tensor:
        """T (m, m), float64 on the CPU; tridiagonal until the first restart."""
        return self._T[: self.m, : self.m]

    def grow(self) -> None:
        """Add the next vector to the basis, by one product."""
        product = self.hessian(self._vectors[self.m]).to(self._vectors.dtype)
        self.rounding = max(self.rounding, 10 * torch.finfo(product.dtype).eps * float(product.norm()))
        self.m += 1
        rest, inside = self._split(product)
        self._T[self.m - 1, : self.m] = self._T[: self.m, self.m - 1] = inside.double().cpu()
        self.beta = float(rest.norm())
        if (
            self.beta <= self.rounding
        ):  # continue with a random vector, or with any vector, which is not used, if the space is complete
            self.beta, outside = 0.0, gaussian(self._random, self._vectors[0])
            rest = self._split(outside)[0] if self.m < self.d else self._vectors[0]
        self._vectors[self.m] = rest / rest.norm()

    def run(self, progress: Callable[[int], None]) -> Krylov:
        """Grow to `room` vectors; `progress` is called with the number of vectors after each."""
        while self.m < self.room:
            self.grow()
            progress(self.m)
        return self

    def ritz(self, p: int) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the `p` largest Ritz values (p,), descending, their coordinates (m, p) and residuals (p,).

        The residuals follow from `beta` and need no product.
        """
        values, vectors = (found.flip(-1)[..., :p] for found in torch.linalg.eigh(self.projected))
        return values, vectors, (self.beta * vectors[-1].abs()).clamp(min=self.rounding)

    def restart(self, p: int) -> None:
        """Shrink the basis to the `p` largest Ritz vectors, and keep the next vector (Wu and Simon, 2000)."""
        values, vectors, _ = self.ritz(p)
        following = self._vectors[self.m].clone()
        self._vectors[:p] = vectors.T.to(self._vectors) @ self.basis
        self._vectors[p] = following
        self._T.zero_()
        self._T[:p, :p] = values.diag()
        self.m = p

    def _split(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Split `v` (d,) into its part orthogonal to the space, and the coordinates (m,) of its part in the space."""
        first = self.basis @ v
        rest = v - first @ self.basis
        second = self.basis @ rest
        return rest - second @ self.basis, first + second


def tridiagonals(hessian: Hessian, starts: Tensor, m: int, progress: Callable[[], None]) -> Tensor:
    """Compute T (k, m, m), float64 on the CPU, of m <= d Lanczos steps from each of `starts` (k, d).

    There is no reorthogonalisation, so that only two vectors are kept for each start and all starts share the passes.
    Converged eigenvalues appear again, but their weights in a quadrature add up to the right weight (Greenbaum, 1989;
    Chen, Trogdon and Ubaru, 2021); with 80 steps in float32, densities differed by 1e-7.
    """
    T = torch.zeros(len(starts), m, m, dtype=torch.float64)
    q, before, beta = starts / starts.norm(dim=1, keepdim=True), torch.zeros_like(starts), 0.0
    eps = torch.finfo(starts.dtype).eps
    for j in range(m):
        product = hessian(q).to(q.dtype)
        rest = product - beta * before
        alpha = (rest * q).sum(1, keepdim=True)
        rest = rest - alpha * q
        beta = rest.norm(dim=1, keepdim=True)
        # If only rounding errors are left, the space is invariant and T ends: zeros have no weight in a quadrature.
        beta = beta * (beta > eps * product.norm(dim=1, keepdim=True))
        before, q = q, torch.where(beta > 0, rest / beta, 0.0)
        T[:, j, j] = alpha[:, 0].double().cpu()
        if j + 1 < m:
            T[:, j, j + 1] = T[:, j + 1, j] = beta[:, 0].double().cpu()
        progress()
    return T


def gaussian(random: np.random.Generator, like: Tensor) -> Tensor:
    """Draw a vector of standard normal numbers with the length (d,), the device and the dtype of `like`."""
    return torch.from_numpy(random.standard_normal(len(like), dtype=np.float32)).to(like)


def rademacher(random: np.random.Generator, k: int, like: Tensor) -> Tensor:
    """Draw `k` vectors of random signs (k, d), one bit each, with the device and the dtype of `like` (d,)."""
    d = len(like)
    bits = [np.unpackbits(np.frombuffer(random.bytes(-(-d // 8)), np.uint8), count=d) for _ in range(k)]
    return 2 * torch.from_numpy(np.stack(bits)).to(like) - 1

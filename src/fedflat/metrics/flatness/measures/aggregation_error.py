from __future__ import annotations

import torch
from torch import Tensor

from ....adapters import Factors, factors
from ....core.hyper import hyper
from ....core.progress import Steps
from ....data.types import Index
from ..measure import Finding, Measure, Measured
from ..subject import RoundObserver, Subject


class AggregationError(Measure):
    """What averaging A and B one by one does to adapters: ||mean(B_i A_i) - mean(B_i) mean(A_i)|| / ||mean(B_i A_i)||.

    The norms are Frobenius norms. The error is computed for each adapted layer; the mean over layers and the largest
    error are reported. B_i and A_i are the clients' factors at the end of the next round, averaged with the clients'
    weights at the server. The server's own step, such as momentum, is excluded. The error is zero if one factor is the
    same at all clients. Layers whose mean product is zero are left out. A real federation cannot compute this measure,
    because its server has only the means of A and B.
    """

    needs_round = True
    precision = ("layers",)

    layers: bool = hyper(False, "also the number of each adapted layer")

    @property
    def needs_adapter(self) -> bool:
        return True

    def measure(self, subject: Subject, progress: Steps) -> Finding:
        observer = _Adapters(subject, progress)
        subject.next_round(None, observer)
        progress(observer.clients, observer.clients)
        found = {one.factors.layer: one.error() for one in observer.layers}
        errors = {layer: error for layer, error in found.items() if error is not None}
        values = {}
        if errors:
            mean, largest = sum(errors.values()) / len(errors), max(errors.values())
            values = {"aggregation_error_mean": Measured(mean), "aggregation_error_largest": Measured(largest)}
        if self.layers:
            values |= {f"aggregation_error/{layer}": Measured(error) for layer, error in errors.items()}
        weights = f"{len(found)} layers, {subject.weights} weights of {observer.clients} clients, their own batches"
        return self.finding(subject, values, samples=weights)


class _Adapters(RoundObserver):
    """Sums each layer's products and factors over clients, so that one matrix is kept for a layer, not for a client."""

    def __init__(self, subject: Subject, progress: Steps) -> None:
        self.subject, self.progress, self.clients = subject, progress, 0
        module = subject.objective.module
        fixed = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
        self.fixed = {name: p.to(subject.w.device) for name, p in fixed.items()}
        self.layers = [_Layer(one) for one in factors(module)]

    def done(self, clients: Index, w: Tensor) -> None:
        sizes = self.subject.data.sizes_of(clients)
        weights = torch.ones(len(w)) if self.subject.weights == "uniform" else torch.from_numpy(sizes)
        found = self.subject.objective.space.views(w)
        for layer in self.layers:
            A, B = (found[name] if name in found else self.fixed[name].expand(len(w), *self.fixed[name].shape)
                    for name in (layer.factors.A, layer.factors.B))  # fmt: skip
            layer.add(A.flatten(2).double(), B.flatten(2).double(), weights.to(w.device, torch.float64))
        self.clients += len(clients)
        self.progress(self.clients, self.clients + 1)  # the number of clients is known only after the round


class _Layer:
    """The weighted sums of one layer over clients, in float64."""

    def __init__(self, factors: Factors) -> None:
        self.factors = factors
        self.sums: tuple[Tensor, ...] = ()  # weights (), A (r, inputs), B (outputs, r), products (outputs, inputs)

    def add(self, A: Tensor, B: Tensor, weights: Tensor) -> None:
        """Add clients with factors (c, r, inputs) and (c, outputs, r), and weights (c,)."""
        by_weight = weights[:, None, None]
        # One product of (outputs, c r) and (c r, inputs) equals the sum of the clients' products, without storing them.
        products = (B * by_weight).movedim(0, 1).flatten(1) @ A.flatten(0, 1)
        found = weights.sum(), (A * by_weight).sum(0), (B * by_weight).sum(0), products
        self.sums = tuple(x + y for x, y in zip(self.sums, found, strict=True)) if self.sums else found

    def error(self) -> float | None:
        """Compute the relative error; None if the mean product is zero."""
        weight, A, B, products = self.sums
        size = float((products / weight).norm())
        return float((products - B @ A / weight).norm() / weight) / size if size > 0 else None

"""The workloads as other frameworks want them: tensors for every client, and epochs instead of steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.workloads import CLASSES, WORKLOADS, Workload
from fedflat import models
from fedflat.data.federated import FederatedData


@dataclass(frozen=True)
class Task:
    """One work, ready to be trained on."""

    work: Workload
    data: FederatedData
    order: Tensor  # of a client's rows, (n,)
    epochs: int  # over the rows in that order
    cohort: int  # clients that train in a round

    @classmethod
    def of(cls, name: str, cohort: int | None = None) -> Task:
        """Return the work `name`.

        `cohort` clients train in a round, by default as many as fedflat's own benchmark times.
        """
        work = WORKLOADS[name]
        return cls(work, work.data(), *_passes(work), min(cohort or work.timed, work.cohort))

    def client(self, i: int) -> tuple[Tensor, Tensor]:
        """Return a copy of the samples of client `i`: x (n, *shape) as the model takes it, y (n,)."""
        x, y = self.data.client(i)
        return self.data.preparation(x[self.order]), y[self.order]

    def clients(self) -> list[tuple[Tensor, Tensor]]:
        """Return the samples of all clients."""
        return [self.client(i) for i in range(self.work.clients)]

    @property
    def factor(self) -> float:
        """What seconds are multiplied by, as not all clients of the work's round are trained."""
        return self.work.cohort / self.cohort

    @property
    def scaled(self) -> str | None:
        """The same in words; None if all are."""
        if self.cohort == self.work.cohort:
            return None
        return f"{self.cohort} of {self.work.cohort} clients trained, times {self.factor:g}"

    def build(self) -> nn.Module:
        """Return fedflat's model with new random weights."""
        return models.build(self.work.model, CLASSES, self.work.shape, **self.work.options)


def vector(module: nn.Module) -> Tensor:
    """Return a copy of all parameters, (d,)."""
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def _passes(work: Workload) -> tuple[Tensor, int]:
    """Return the order of a client's rows, and the epochs over them that make the work's steps.

    Where the steps are no whole number of epochs, a client's rows are repeated until one epoch has as many steps.
    """
    per_epoch = -(-work.samples // work.batch)
    if work.steps % per_epoch == 0:
        return torch.arange(work.samples), work.steps // per_epoch
    return torch.arange(work.steps * work.batch) % work.samples, 1

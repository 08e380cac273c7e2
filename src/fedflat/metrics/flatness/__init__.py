"""Flatness of a model, each measure with its protocol stated."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import nn

from ...core.errors import InputError
from ...core.objective import Batch, Objective
from ...data.federated import FederatedData
from .eigenvalue import lambda_max
from .sharpness import sharpness

MAX_SAMPLES = 2000


def flatness(
    model: nn.Module,
    data: FederatedData,
    metrics: Sequence[str] = ("lambda_max", "sharpness"),
    rho: float = 0.05,
    max_samples: int = MAX_SAMPLES,
) -> dict[str, float]:
    """Measure the flatness of `model` on a fixed subset of the pooled training data.

    The loss is the mean cross-entropy without weight decay, the model in evaluation mode. The subset
    is evenly spaced over all training samples, so every model is measured on the same ones.

    Returns, by name: `lambda_max`, the largest Hessian eigenvalue, with `lambda_max_residual`,
    ||H v - lambda v||; `sharpness`, F(w + rho unit(grad F)) - F(w) at radius `rho` in parameter
    units. Raises ValueError for an unknown name, a value out of range, or a model with NaN in it.
    """
    if isinstance(metrics, str):
        raise InputError(f"metrics must be a list of names, got {metrics!r}")
    unknown = set(metrics) - {"lambda_max", "sharpness"}
    if unknown:
        raise InputError(f"unknown flatness metric {min(unknown)!r}; known are lambda_max, sharpness")
    if rho < 0 or max_samples < 1:
        raise InputError(f"flatness needs rho >= 0 and max_samples >= 1, got {rho} and {max_samples}")
    objective = Objective(deepcopy(model))
    w = objective.space.flatten(objective.module)
    if not torch.isfinite(w).all():
        raise InputError("flatness cannot be measured: the model has parameters that are NaN or infinite")
    batch = pooled_batch(data.to(w.device, w.dtype), max_samples)
    values: dict[str, float] = {}
    with objective.evaluating():
        if "lambda_max" in metrics:
            values["lambda_max"], values["lambda_max_residual"] = lambda_max(objective, w, batch)
        if "sharpness" in metrics:
            values["sharpness"] = sharpness(objective, w, batch, rho)
    return values


def pooled_batch(data: FederatedData, max_samples: int = MAX_SAMPLES) -> Batch:
    """At most `max_samples` of the clients' training samples, evenly spaced, as one batch."""
    step = -(-len(data.members) // max_samples)
    chosen = torch.from_numpy(data.members[::step]).to(data.y.device)
    return Batch(data.inputs(chosen), data.y[chosen])
